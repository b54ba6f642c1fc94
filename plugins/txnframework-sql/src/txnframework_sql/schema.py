"""The tables, as the newest migration leaves them; a test holds the two together."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, MetaData, Table, Text
from sqlalchemy.dialects import postgresql

VERSION_TABLE = "txnframework_schema"
"""Where Alembic keeps the revision; its presence says that a database is one of ours."""

REVISION = "0002"
"""The revision that this release reads and writes."""

# SQLite makes a primary key the row's own number only if it is declared INTEGER; elsewhere that is too short.
_Number = BigInteger().with_variant(Integer, "sqlite")
# Compared by code points, as Python and SQLite compare text, whatever language the database was made for.
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
``identity``: of the metadata store; ``ledger-identity``: of the metadata store that the ledgers belong to;
``channel``, in PostgreSQL: what the name of the channel is made of on which changes are notified.
"""

counters = Table(
    "counters",
    metadata,
    Column("name", _Text, primary_key=True),
    Column("value", _Number, nullable=False),
    sqlite_with_rowid=False,
)
"""
``number``: the last version, sequence or fencing number given; ``ledger``: the last ledger id. They only grow.

PostgreSQL keeps no ``number`` here, but the sequence ``NUMBERS``: writers would wait for each other at its row.
"""

NUMBERS = "txnframework_numbers"
"""The sequence of PostgreSQL from which versions, sequence and fencing numbers come."""

records = Table(
    "records",
    metadata,
    Column("path", _Text, primary_key=True),
    Column("partition", _Text, primary_key=True),
    Column("version", _Number, nullable=False),
    Column("indexes", _Text),
    Column("value", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
    # Room for the next version of a record beside the present one: its key's index then stays as it is.
    postgresql_with={"fillfactor": 80},
)
"""``indexes``: the record's own list of its index entries (JSON; keys in hex), to know which to remove."""

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
"""The leases that are held; ``fencing`` comes from the counter ``number``, so it outlives the row."""

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
    # An id never returns, so a handle of a deleted managed ledger never meets the one that is made after it.
    sqlite_autoincrement=True,
)
"""
``name`` NULL: deleted, its data is being removed. ``last_*``: the last entry before the open ledger. ``trimmed_*``: the
last entry that was trimmed.
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
"""One ledger of a managed ledger, and its totals; ``trimming``: it is gone, and its entries are being removed."""

entries = Table(
    "entries",
    metadata,
    Column("place", _Number, primary_key=True, autoincrement=False),
    Column("messages_through", _Number, nullable=False),
    Column("appended_ms", _Number, nullable=False),
    # Last, because what stands before a large value is read without it.
    Column("data", LargeBinary, nullable=False),
)
"""
``place``: ledger id * 2**32 + entry id. ``messages_through``: messages of the ledger up to and including this entry.
Both it and ``appended_ms`` never fall within a ledger, so a count or a time is found by bisection, without an index.
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
Which sequences of a producer stand where; the copies of one producer do not overlap. ``sequences_through``: how many
sequences the producer had when this one was appended, which says when it is old enough to be forgotten.
"""

highest_txn_numbers = Table(
    "highest_txn_numbers",
    metadata,
    Column("coordinator", Integer, primary_key=True, autoincrement=False),
    Column("number", _Text, nullable=False),
)
"""``number``: 28 hex digits, since it has more bits than a database's integers."""

PLACE_BITS = 32


def place_of(ledger_id: int, entry_id: int) -> int:
    """Return the number under which an entry stands."""
    return (ledger_id << PLACE_BITS) + entry_id


def ledger_id_of(place: int) -> int:
    """Return the ledger id of a place."""
    return place >> PLACE_BITS


def entry_id_of(place: int) -> int:
    """Return the entry id of a place."""
    return place & ((1 << PLACE_BITS) - 1)
