"""
Compaction: messages of committed transactions are rewritten in commit order, so that the sidecar can be trimmed.

The sidecar holds messages in the order of the sends, mixed with those of other and of aborted transactions. Reading a
commit requires reads at many positions, and one old transaction retains all messages sent around it. Compaction writes
the messages of each marker as one entry to another ledger beside the topic, in the order of the markers. ``format`` is
the format of its entries, ``compacted`` finds the messages of a marker, ``compacting`` writes them.
"""
