"""
The transaction buffer ``sidecar``: messages of open transactions are stored beside the topic until the commit.

Messages of a transaction are appended to a sidecar, a managed ledger beside the topic. The commit is a marker in the
topic that lists the positions of the messages in the sidecar. A reader of the topic receives the messages at the
marker. So open transactions block no reader, aborted messages are never read, and the order of the topic is the order
of the commits.

``markers`` encodes markers in the topic and notes in the sidecar, ``parts`` divides a transaction into markers.
``state`` is the meaning of all these entries (without I/O), ``ledgers`` reads both ledgers. ``appends`` appends
messages, ``settlement`` ends transactions, ``messages`` reads the messages of a marker, ``retention`` compacts and
trims, ``buffer`` is the role.

Two rules make this safe. *The first marker decides*: a marker is appended only to the ledger of the topic that was open
before the topic was read. A second marker, of a process that repeats the end, can therefore only be in that same
ledger, and is skipped there. *The note follows the marker*: an entry of the sidecar records that a transaction has
ended and is settled here. After a crash before the note, the next process that settles the transaction writes it.
"""
