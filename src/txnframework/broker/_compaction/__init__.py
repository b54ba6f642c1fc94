"""Compaction: copies of segments with only the messages that somebody decided to keep."""
