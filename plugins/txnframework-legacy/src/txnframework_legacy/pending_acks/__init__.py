"""
The pending-ack store ``log``: one log beside each subscription, whose order decides which transaction holds a message.

Any process that acknowledges in a transaction appends a record, and any process may read the log. A record holds its
messages unless an earlier record of another unsettled transaction holds some of them. So of two conflicting records
exactly one wins, and every reader agrees which. The log contains neither the transaction's state nor the cursor. Both
are checked before the append and again after it; a record that proves to be too late is withdrawn.

A log is trimmed by whole ledgers. Before that, the acknowledgments that are still held are written to the ledger that
becomes the first one, as its *base*. The base is required because whether a record holds depends on all earlier
records.

``records`` defines the stored records, and ``holds`` their meaning (without I/O). ``log`` is one log as this process
has read it. ``settlement`` settles ended transactions. ``store`` implements the role.
"""
