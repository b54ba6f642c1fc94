"""
Where everything stands in ZooKeeper's tree, and what a node says; pure.

``_names`` cuts components into names of nodes, ``_layout`` places records by their keys and ``_index`` their index
entries, ``_lives`` the second node of a lease, ``_chunks`` the parts of large values. ``_records`` is the format of a
record, ``_places`` the node to watch for a target.
"""

from __future__ import annotations
