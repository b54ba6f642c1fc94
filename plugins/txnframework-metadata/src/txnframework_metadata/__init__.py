"""
The ``metadata`` family of plugins: a transaction is one record in the metadata store, ended by one compare-and-set.

``coordinator``, ``buffer`` and ``pending_acks`` implement the three roles. They share the record formats in
``records``.
"""
