"""Batch jobs over whole topics, on Spark: ``txnframework job compact`` and ``txnframework job export``.

A job consists of one driver, this process, and tasks that read ledger ranges directly from storage. The output of tasks
counts after one change by the driver: of a segment's record (``compaction``), or of a folder's name (``export``,
``export_folder``). A kill before that change has no effect; after it, the job is complete. The next job removes
leftovers.
"""
