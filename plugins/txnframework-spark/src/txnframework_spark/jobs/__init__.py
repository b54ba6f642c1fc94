"""Long work over whole topics, on Spark: ``txnframework job compact`` and ``txnframework job export``.

A job is one driver, this process, and tasks that read ledger ranges straight from storage. What tasks write counts
once the driver has made one change: of a segment's record (``compaction``), or of a folder's name (``export``). Killed
before, a job leaves everything as it was; killed after, it has done its work. What is left over goes with the next one.
"""
