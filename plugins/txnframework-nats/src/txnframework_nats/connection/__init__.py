"""
Connections to NATS servers, through nats-py's public API.

The layers, lowest first: ``_failures`` contains the outcomes of a request that are not a reply. ``_client`` connects,
and says in one sentence why the servers cannot be used. ``_connection`` is the connection of one store: requests,
messages to streams, and subscriptions. ``_attempts``: how long a request is repeated, and with which pauses.
"""

from __future__ import annotations
