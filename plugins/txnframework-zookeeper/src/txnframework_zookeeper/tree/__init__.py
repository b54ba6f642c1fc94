"""
The layout of ZooKeeper's tree, and the format of the data in its nodes; pure functions.

``_names`` cuts components into names of nodes. ``_layout`` maps keys to the nodes of records, and ``_index`` maps index
entries to nodes. ``_lives`` defines the second node of a lease, and ``_chunks`` the parts of large values. ``_records``
is the format of a record. ``_places`` defines the nodes to watch for a target.
"""

from __future__ import annotations
