"""
One session with an ensemble: what is asked of it, awaited in the event loop.

From below to above: ``_requests`` are bytes, ``_wire`` is a socket as kazoo uses it, ``_roles`` what kind of server is
at its other end, ``_thread`` what runs on kazoo's one thread, ``_returns`` how that comes into the loop, ``_direct``
what goes past the thread; ``_kazoo`` makes a client of kazoo's of these. ``_link`` has one such client after another,
and knows what became of the session; ``_looking`` reads a node and watches it in one; ``_zookeeper`` is what the rest
of the package talks to. What kazoo raises is translated in ``_errors``. Private names of kazoo are used in ``_thread``,
``_direct``, ``_kazoo`` and ``_link`` alone.
"""

from __future__ import annotations
