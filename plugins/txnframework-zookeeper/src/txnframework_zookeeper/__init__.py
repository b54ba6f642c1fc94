"""
Metadata store on Apache ZooKeeper, through kazoo.

The layers, lowest first; no module imports one from a later layer:

* ``connection``: one session with an ensemble, over a sequence of connections: awaitable requests. It knows no records.
* ``tree``: the layout of the nodes and the format of their data; pure functions without I/O.
* The operations of a store, which use both: ``_writer``, ``_reader``, ``_watches``, ``_leases`` and ``_root``, which
  checks the content of a chroot. ``_writer`` uses ``_plans`` (a multi for each batch) and ``_chunk_writer`` (large
  values). ``_nodes`` is their cache of nodes; it creates the parents of records, and removes empty nodes.
* ``_metadata_store``: the role; ``plugin``: its hook. ``testing`` contains the harnesses.
"""

from __future__ import annotations
