"""
Metadata store and ledgers on NATS JetStream, through nats-py.

The layers, lowest first; no module imports one from a later layer:

* ``_options``: the location of the servers, and the options. ``connection``: requests to the servers, and their errors.
  It knows no records and no ledgers.
* ``records``: the metadata store. ``ledgers``: the ledger store. Neither imports the other.
* ``plugin``: the hooks. ``testing`` contains the harnesses, and real servers for tests.
"""

from __future__ import annotations
