"""Compaction: copies of segments that hold only the messages a compactor keeps."""
