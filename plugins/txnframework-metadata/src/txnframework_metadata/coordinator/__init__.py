"""
The coordinator ``metadata``: a transaction is one record in the metadata store, ended by one compare-and-set.

``coordinator`` implements the role. ``joint_commit`` begins and commits in one step. ``co_commit`` commits together
with rows of the application. ``unfinished_commit`` prepares a commit by a process that is not the owner.
``applications`` binds transactions to batches of applications; its pure part is ``application_record``. ``sweeps``
settles, times out and collects transactions. ``outstanding_transactions`` finds ended transactions with unfinished
operations.
"""
