"""
``txnframework job audit``: a proof that what a deployment stores is consistent.

``deployment`` plans what is read: each ledger in pieces. ``entries`` reads a piece in a task, and returns a row for
each entry. ``ledgers`` and ``checks`` find contradictions among these rows, and between them and the records;
``acknowledgments`` does so for subscriptions. ``report`` is the result.
"""
