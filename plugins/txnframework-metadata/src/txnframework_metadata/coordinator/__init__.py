"""
The coordinator ``metadata``: a transaction is one record in the metadata store, and ending it is one compare-and-set.

``ending`` is that one, ``applications`` what binds a transaction to a batch of an application (``application_record``
is pure); ``sweeps`` settles, times out and collects what ``outstanding`` finds. ``coordinator`` is the role.
"""
