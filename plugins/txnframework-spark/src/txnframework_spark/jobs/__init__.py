"""Batch jobs on Spark: ``txnframework job compact`` and ``job export`` of a topic, ``job audit`` of a deployment.

A job consists of one driver, this process, and tasks that read ledger ranges directly from storage. The output of tasks
counts after one change by the driver: of a segment's record (``compaction``), or of a folder's name (``export``,
``export_folder``, ``audit``). A kill before that change has no effect; after it, the job is complete. The next
compaction or export removes leftovers; a killed audit leaves a folder whose name ends in ``.partial-`` and a number.
"""
