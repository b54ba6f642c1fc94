"""
The transaction buffer ``metadata``: all writes to and all reads of one segment.

``buffer`` implements the role. Writing: ``intents`` writes the record that precedes a branch's first entry.

Reading: ``segment_view`` holds what this process knows of the segment, read with ``outcomes``. ``visibility`` decides
from it what may be read (pure). ``outcomes`` knows which branches with decided entries count. ``entry_reader`` reads
entries, also before they become readable, and ``announcements`` waits for more of them.

Ending: ``outcomes`` makes outcomes durable in the segment, and ``retention`` removes data that is no longer needed.
"""
