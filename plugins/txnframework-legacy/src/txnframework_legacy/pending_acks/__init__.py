"""
The pending-ack store ``log``: one log beside each subscription, and its order decides who holds a message.

Any process that acknowledges in a transaction appends what it acknowledges, and every process that wants to know reads
it. A record holds its messages unless one of another transaction, which stands before it and is not over there, holds
some of them: so of two that meet exactly one wins, and everybody sees which. What the log cannot tell, the state of the
transaction and the cursor, is looked at before and once more after the append; what is found to be too late is
withdrawn.

A log is trimmed ledger by ledger. What the transactions that go on hold is written again at the beginning of the ledger
that becomes the first one, as its *base*: judging a record needs all that stood before it.

``records`` is what stands in a log, ``held`` what it means (pure), ``log`` one log as a process knows it, ``store``
the role.
"""
