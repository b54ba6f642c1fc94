"""
The layout of ZooKeeper's tree, and the format of the data in its nodes; pure functions.

``_layout`` maps keys to the nodes of records, and ``_index`` maps index entries to nodes. ``_records`` is the format of
a record, and of values in chunks. ``_ranges`` defines the nodes that a scan or a watch of a range visits.
"""

from __future__ import annotations
