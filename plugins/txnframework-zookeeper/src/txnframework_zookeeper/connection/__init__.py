"""
One session with an ensemble, used from an event loop, through kazoo's public API.

From below to above: ``_requests`` are the calls of kazoo's client that this package makes, with the errors that they
end in. ``_handler`` is the bridge from kazoo's thread to the event loop, ``_connection`` one client of kazoo's.
``_link`` has one connection after another, and knows what became of the session. ``_zookeeper`` is what the rest of
the package
uses.
"""

from __future__ import annotations
