"""
One session with an ensemble, used from an event loop, through kazoo's public API.

The layers, lowest first: ``_requests`` contains the calls of kazoo's client that this package makes, and their errors.
``_bridge`` connects kazoo's thread to the event loop. ``_connection`` is one kazoo client. ``_session`` opens one
connection after another and tracks the session. ``_client`` is the interface for the rest of the package.
"""

from __future__ import annotations
