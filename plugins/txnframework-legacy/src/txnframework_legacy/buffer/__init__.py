"""
The transaction buffer ``marker``: a transaction's outcome is an entry of the topic itself, and the topic's order
decides.

An entry of a transaction counts if the first marker after it says that the transaction was committed, and lists the
entry's branch. An entry after the marker was written by a writer that was paused, and never counts. Such a late entry
is always in the same ledger as the marker: admission to a later ledger finds the transaction ended. Markers are
therefore remembered only within their ledger. Aborted branches and late entries are remembered longer.

Every process that serves a topic reads it to its end, and derives the same state. To shorten recovery, the state is
written from time to time as a snapshot, to a ledger beside the topic.

* ``markers`` is the format of a marker, ``state`` the meaning of entries and markers, without I/O.
* ``snapshots`` stores the state; ``snapshot_format`` and ``documents`` encode it.
* ``topic`` is one topic as this process has read it; ``ledger_reader`` reads a ledger incrementally.
* ``group_append`` combines concurrent appends.
* ``buffer`` is the role, ``base`` its part that the buffer ``sidecar`` shares.

The limit of this design: a sealed topic takes no marker. A transaction that wrote to it can be decided, but never takes
effect there. Ending it raises ``EndTransactionTimeout``.
"""
