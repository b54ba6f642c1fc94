"""
The metadata store: records in one stream, and a copy of them in every process.

The layers, lowest first; no module imports one from a later layer:

* ``_layout``: subjects, and the form of messages. ``_sorted_keys`` and ``_copy``: the copy of the records, in order.
  ``_plans``: the messages of a batch, and what its conditions say. These are pure: they do no I/O.
* ``_stream``: makes and checks the stream, and reads its identity. ``_consumer`` and ``_applier``: messages of the
  stream on their way to the copy. ``_feed``: keeps the copy current. ``_writer``: sends messages, and finds out what
  became of them. ``_watches``, ``_sessions``, ``_lease_writes`` and ``_leases`` use these.
* ``_metadata_store``: the role.

Every record has a subject of its own, and each message removes the earlier ones of its subject. A record's version is
the sequence number of its message in the stream. So versions grow over all records, and also over the lives of one
record. A message contains the record's key, value and index entries, so they change together. Conditions are checked by
the stream: the last sequence number of a subject.

Reads are answered by the copy. Before each read, the leader of the stream is asked for its last sequence number, and
the copy must have reached it. The copy is fed by a consumer of the stream that keeps no state on the servers.
"""

from __future__ import annotations
