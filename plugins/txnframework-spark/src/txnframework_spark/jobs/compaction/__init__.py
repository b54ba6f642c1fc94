"""``txnframework job compact``: the broker's compaction, with copies made by parallel tasks."""
