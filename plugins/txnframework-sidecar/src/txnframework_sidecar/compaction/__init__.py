"""
Compaction: messages of committed transactions written anew in the order of their commits, so that the sidecar can go.

In a sidecar the messages of transactions stand as they were sent, between each other and between what was aborted: to
read a commit is to read here and there, and one old transaction keeps all that was sent beside it. Compaction writes
what each marker lists as one entry into another ledger beside the topic, in the order of the markers. ``format`` is
what stands there, ``compacted`` finds in it what a marker lists, ``compacting`` writes it.
"""
