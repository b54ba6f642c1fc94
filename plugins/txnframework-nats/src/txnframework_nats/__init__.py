"""
Metadata store and ledger on NATS JetStream, through nats-py.

The layers, lowest first; no module imports one from a later layer:

* ``connection``: requests to the servers, and their errors. It knows no records and no ledgers.
* ``plugin``: the hooks. ``testing`` contains real servers for tests.
"""

from __future__ import annotations
