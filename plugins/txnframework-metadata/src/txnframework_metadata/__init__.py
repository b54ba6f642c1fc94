"""
The metadata-driven family: a transaction is one record, and ending it is one compare-and-set.

``coordinator``, ``buffer`` and ``pending_acks`` fill in the three roles; what they know of each other is in
``records``.
"""
