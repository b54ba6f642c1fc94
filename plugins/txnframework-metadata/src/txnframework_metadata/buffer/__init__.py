"""
The transaction buffer ``metadata``: who may append to one segment, and what may be read of it.

Writing: ``intents`` is the record that comes before a branch's first entry. Reading: ``segment_view`` is what this
process knows, brought up to date from ``outcomes``; ``visibility`` decides from it (pure), ``aborted`` remembers which
decided entries do not count, ``fetching`` brings the entries, ``ahead`` those that may soon be read,
``announcements`` waits for more of them. Ending: ``materializing`` makes outcomes durable in the segment, ``trimming``
removes what nobody can need. ``buffer`` is the role.
"""
