"""
The pending-ack store ``metadata``: acknowledgments of one subscription whose transactions have not ended.

``store`` implements the role. ``groups`` gathers requests that wait for their turn, ``writing`` writes their records,
and ``look`` checks them afterwards for conflicts with other ``records``. ``confirmed`` holds what this process has
confirmed to its callers.
"""
