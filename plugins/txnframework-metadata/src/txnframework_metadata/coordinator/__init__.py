"""
The coordinator ``metadata``: a transaction is one record in the metadata store, ended by one compare-and-set.

``coordinator`` implements the role. ``ending`` is the compare-and-set. ``applications`` binds transactions to batches
of applications; its pure part is ``application_record``. ``sweeps`` settles, times out and collects transactions.
``outstanding`` finds ended transactions with unfinished operations.
"""
