"""
The transaction buffer ``metadata``: all writes to and all reads of one segment.

``buffer`` implements the role. Writing: ``intents`` writes the record that precedes a branch's first entry.

Reading: ``segment_view`` contains the state of the segment as this process has read it. ``visibility`` decides from
this state which entries may be read, and knows which branches count (pure). ``entry_reader`` reads entries, also before
they become readable. ``announcements`` waits until more entries are readable. ``visibility_times`` measures how long
commits take to become readable.

Ending: ``abort_records`` makes outcomes durable in the segment, and ``retention`` removes data that is not needed.
"""
