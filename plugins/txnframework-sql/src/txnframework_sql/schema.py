"""The tables, as the newest migration creates them; a test compares the two."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, MetaData, Table, Text
from sqlalchemy.dialects import postgresql

VERSION_TABLE = "txnframework_schema"
"""The table in which Alembic stores the revision; its presence marks a database of this framework."""

REVISION = "0003"
"""The revision that this release reads and writes."""

# SQLite uses a primary key as the row id only if it is declared INTEGER; in other databases INTEGER is too short.
_Number = BigInteger().with_variant(Integer, "sqlite")
# Compared by code points, as in Python and SQLite, whatever the locale of the database.
_Text = Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")

metadata = MetaData()

store = Table(
    "store",
    metadata,
    Column("name", _Text, primary_key=True),
    Column("value", _Text, nullable=False),
    sqlite_with_rowid=False,
)
"""
``identity``: of the metadata store. ``ledger-identity``: of the metadata store that the ledgers belong to.

``channel``, in PostgreSQL: the token from which the name of the notification channel is built.
"""

counters = Table(
    "counters",
    metadata,
    Column("name", _Text, primary_key=True),
    Column("value", _Number, nullable=False),
    sqlite_with_rowid=False,
)
"""
``number``: the last version, sequence or fencing number given; ``ledger``: the last ledger id. Both only grow.

PostgreSQL stores no ``number`` here: writers would wait for each other at its row. It uses the sequence ``NUMBERS``.
"""

NUMBERS = "txnframework_numbers"
"""The PostgreSQL sequence of versions, sequence numbers and fencing numbers."""

records = Table(
    "records",
    metadata,
    Column("path", _Text, primary_key=True),
    Column("partition", _Text, primary_key=True),
    Column("version", _Number, nullable=False),
    Column("indexes", _Text),
    Column("value", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
    # Leaves space for the next version of a record beside the current one, so that the index of its key does not
    # change.
    postgresql_with={"fillfactor": 80},
)
"""``indexes``: the record's own list of its index entries (JSON; keys in hex), which names the entries to remove."""

index_entries = Table(
    "index_entries",
    metadata,
    Column("index_name", _Text, primary_key=True),
    Column("key", LargeBinary, primary_key=True),
    Column("path", _Text, primary_key=True),
    Column("partition", _Text, primary_key=True),
    sqlite_with_rowid=False,
)

sessions = Table(
    "sessions",
    metadata,
    Column("session", _Text, primary_key=True),
    Column("expires_ms", _Number, nullable=False),
    sqlite_with_rowid=False,
)

leases = Table(
    "leases",
    metadata,
    Column("name", _Text, primary_key=True),
    Column("session", _Text, nullable=False),
    Column("holder", _Text, nullable=False),
    Column("fencing", _Number, nullable=False),
    Index("leases_by_session", "session"),
    sqlite_with_rowid=False,
)
"""The held leases; ``fencing`` comes from the counter ``number``, so it outlives the row."""

managed_ledgers = Table(
    "managed_ledgers",
    metadata,
    Column("id", _Number, primary_key=True),
    Column("name", _Text, unique=True),
    Column("sealed", Integer, nullable=False),
    Column("first_ledger_id", _Number, nullable=False),
    Column("open_ledger_id", _Number, nullable=False),
    Column("last_ledger_id", _Number, nullable=False),
    Column("last_entry_id", _Number, nullable=False),
    Column("trimmed_ledger_id", _Number),
    Column("trimmed_entry_id", _Number),
    # Ids are never reused, so a handle of a deleted managed ledger never reaches a later one of the same name.
    sqlite_autoincrement=True,
)
"""
``name`` NULL: deleted, its data is being removed. ``last_*``: the last entry before the open ledger.

``trimmed_*``: the last trimmed entry.
"""

ledger_segments = Table(
    "ledger_segments",
    metadata,
    Column("ledger_id", _Number, primary_key=True, autoincrement=False),
    Column("managed_id", _Number, nullable=False),
    Column("trimming", Integer, nullable=False),
    Column("entries", _Number, nullable=False),
    Column("bytes", _Number, nullable=False),
    Column("messages", _Number, nullable=False),
    Column("appended_ms", _Number, nullable=False),
    Index("ledger_segments_by_managed", "managed_id", "ledger_id"),
)
"""One ledger of a managed ledger, and its totals. ``trimming``: it is trimmed, and its entries are being removed."""

entries = Table(
    "entries",
    metadata,
    Column("place", _Number, primary_key=True, autoincrement=False),
    Column("messages_through", _Number, nullable=False),
    Column("appended_ms", _Number, nullable=False),
    # The last column, because the columns before a large value are read without the value.
    Column("data", LargeBinary, nullable=False),
)
"""
``place``: ledger id * 2**32 + entry id. ``messages_through``: messages of the ledger up to and including this entry.

``messages_through`` and ``appended_ms`` never decrease within a ledger, so bisection finds a count or a time without an
index.
"""

producer_copies = Table(
    "producer_copies",
    metadata,
    Column("managed_id", _Number, primary_key=True),
    Column("producer", _Text, primary_key=True),
    Column("last", _Number, primary_key=True),
    Column("first", _Number, nullable=False),
    Column("ledger_id", _Number, nullable=False),
    Column("entry_id", _Number, nullable=False),
    Column("txn", _Text),
    Column("branch", _Number),
    Column("sequences_through", _Number, nullable=False),
    Column("appended_ms", _Number, nullable=False),
    sqlite_with_rowid=False,
)
"""
Where the sequences of a producer are stored; the copies of one producer do not overlap.

``sequences_through``: the number of the producer's sequences when this one was appended. It decides when the copy is
old enough to be forgotten.
"""

highest_txn_numbers = Table(
    "highest_txn_numbers",
    metadata,
    Column("coordinator", Integer, primary_key=True, autoincrement=False),
    Column("number", _Text, nullable=False),
    Column("managed_id", _Number, primary_key=True, autoincrement=False),
)
"""
The highest transaction number of each coordinator: the highest of its rows.

``number``: 28 hex digits, because it has more bits than the integers of a database. ``managed_id``: in PostgreSQL, a
managed ledger that is locked before its row is raised, so that no other writers wait for each other; 0: no ledger in
particular, as in SQLite, which has one writer, and for what was deleted or copied.
"""

PLACE_BITS = 32


def place_of(ledger_id: int, entry_id: int) -> int:
    """Return the number under which an entry is stored."""
    return (ledger_id << PLACE_BITS) + entry_id


def ledger_id_of(place: int) -> int:
    """Return the ledger id of a place."""
    return place >> PLACE_BITS


def entry_id_of(place: int) -> int:
    """Return the entry id of a place."""
    return place & ((1 << PLACE_BITS) - 1)
