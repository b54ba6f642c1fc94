"""
Metadata store on Apache ZooKeeper, through kazoo.

The layers, lowest first; no module imports one from a later layer:

* ``connection``: one session with an ensemble, over a sequence of connections: awaitable requests. It knows no records.
* ``tree``: the layout of the nodes and the format of their data; pure functions without I/O.
* The operations of a store, which use both: ``_writing``, ``_scanning``, ``_watches``, ``_leases`` (on
  ``_lease_nodes``) and ``_root``, which checks the content of a chroot. ``_writing`` uses ``_steps`` (plans),
  ``_numbers`` (sequence numbers), ``_outcomes`` (multis whose reply was lost) and ``_reaping`` (removes empty nodes).
  ``_known`` is their cache of nodes, and creates the parents of a record.
* ``_metadata_store``: the role; ``plugin``: its hook. ``testing`` contains the harnesses.
"""

from __future__ import annotations
