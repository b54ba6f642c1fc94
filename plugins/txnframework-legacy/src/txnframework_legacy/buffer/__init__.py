"""
The transaction buffer ``marker``: how a transaction ended is an entry of the topic itself; the topic's order decides.

An entry of a transaction counts if the first marker of the transaction stands behind it, says that it was committed,
and lists the entry's branch. One that stands behind the marker came from a writer that was paused, and never counts.
Such an entry can only stand in the same ledger: whoever is admitted to a later one finds the transaction ended. So
which markers there were need not be remembered beyond their ledger; what is remembered longer is what does not count.

Every process that serves a topic reads it to its end, and finds the same. So that opening does not read everything,
what was found is written down from time to time, in a ledger beside the topic.

``markers`` is what a marker looks like, ``states`` what entries and markers mean (pure), ``snapshots`` what was written
down, ``topic`` one topic as a process knows it, ``admission`` who may append, ``buffer`` the role.

The limit of this way: a sealed topic takes no marker, so a transaction that wrote to it can be decided, but never takes
effect there. Ending it ends with EndTransactionTimeout.
"""
