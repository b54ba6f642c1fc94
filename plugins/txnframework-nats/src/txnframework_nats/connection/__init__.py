"""
Connections to NATS servers, through nats-py's public API.

``_connection`` is the connection of one store: requests, replies and subscriptions. ``_failures`` turns the errors of
the client and of the servers into those of the framework.
"""

from __future__ import annotations
