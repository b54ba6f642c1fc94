"""
The pending-ack store ``metadata``: acknowledgments of one subscription whose transactions have not ended.

``store`` implements the role. ``groups`` says which requests may share a record, ``writer`` writes their records,
and ``conflict_check`` checks them afterwards for conflicts with other ``records``. ``records`` also contains the
acknowledgments that this process has confirmed to its callers.
"""
