"""
Metadata store on Apache ZooKeeper, through kazoo.

From below to above; nothing imports what stands further down in this list:

* ``connection``: one session with an ensemble, over as many connections as it takes: requests, awaited. It knows no
  record.
* ``tree``: where everything stands and what a node says; pure, without any I/O.
* What a store does, each on both of them: ``_writing`` (``_steps`` plans, ``_numbers`` counts, ``_outcomes`` settles
  what was lost, ``_reaping`` removes what became empty), ``_scanning``, ``_watches``, ``_leases`` on ``_lease_nodes``,
  and ``_root``, which knows what a chroot holds. ``_known`` is what they remember of nodes, and
  makes those above a record.
* ``_metadata_store``: the role; ``plugin``: its hook. ``testing`` has the harnesses.
"""

from __future__ import annotations
