"""
``txnframework job audit``: a proof that what a deployment stores is consistent.

``deployment`` plans what is read: each ledger in pieces. ``pieces`` reads one piece in a task, and returns rows: its
counts and hash, its branches, and the entries of compacted segments. ``checks`` finds contradictions among these rows,
and between them and the records; ``acknowledgments`` does so for subscriptions. ``report`` writes the result.
"""
