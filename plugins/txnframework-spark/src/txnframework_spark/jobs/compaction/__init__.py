"""``txnframework job compact``: what the broker's compaction does, with the copying spread over tasks."""
