"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_Number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_Text = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    """Create every table."""
    _make_metadata_tables()
    _make_ledger_tables()


def _make_metadata_tables() -> None:
    op.create_table(
        "store",
        sa.Column("name", _Text, primary_key=True),
        sa.Column("value", _Text, nullable=False),
        sqlite_with_rowid=False,
    )
    counters = op.create_table(
        "counters",
        sa.Column("name", _Text, primary_key=True),
        sa.Column("value", _Number, nullable=False),
        sqlite_with_rowid=False,
    )
    op.bulk_insert(counters, [{"name": "ledger", "value": 0}])
    if op.get_context().dialect.name == "postgresql":
        op.execute("CREATE SEQUENCE txnframework_numbers")
    else:
        op.bulk_insert(counters, [{"name": "number", "value": 0}])
    op.create_table(
        "records",
        sa.Column("path", _Text, primary_key=True),
        sa.Column("partition", _Text, primary_key=True),
        sa.Column("version", _Number, nullable=False),
        sa.Column("indexes", _Text),
        sa.Column("value", sa.LargeBinary, nullable=False),
        sqlite_with_rowid=False,
        postgresql_with={"fillfactor": 80},
    )
    op.create_table(
        "index_entries",
        sa.Column("index_name", _Text, primary_key=True),
        sa.Column("key", sa.LargeBinary, primary_key=True),
        sa.Column("path", _Text, primary_key=True),
        sa.Column("partition", _Text, primary_key=True),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "sessions",
        sa.Column("session", _Text, primary_key=True),
        sa.Column("expires_ms", _Number, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "leases",
        sa.Column("name", _Text, primary_key=True),
        sa.Column("session", _Text, nullable=False),
        sa.Column("holder", _Text, nullable=False),
        sa.Column("fencing", _Number, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("leases_by_session", "leases", ["session"])


def _make_ledger_tables() -> None:
    op.create_table(
        "managed_ledgers",
        sa.Column("id", _Number, primary_key=True),
        sa.Column("name", _Text, unique=True),
        sa.Column("sealed", sa.Integer, nullable=False),
        sa.Column("first_ledger_id", _Number, nullable=False),
        sa.Column("open_ledger_id", _Number, nullable=False),
        sa.Column("last_ledger_id", _Number, nullable=False),
        sa.Column("last_entry_id", _Number, nullable=False),
        sa.Column("trimmed_ledger_id", _Number),
        sa.Column("trimmed_entry_id", _Number),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "ledger_segments",
        sa.Column("ledger_id", _Number, primary_key=True, autoincrement=False),
        sa.Column("managed_id", _Number, nullable=False),
        sa.Column("trimming", sa.Integer, nullable=False),
        sa.Column("entries", _Number, nullable=False),
        sa.Column("bytes", _Number, nullable=False),
        sa.Column("messages", _Number, nullable=False),
        sa.Column("appended_ms", _Number, nullable=False),
    )
    op.create_index("ledger_segments_by_managed", "ledger_segments", ["managed_id", "ledger_id"])
    op.create_table(
        "entries",
        sa.Column("place", _Number, primary_key=True, autoincrement=False),
        sa.Column("messages_through", _Number, nullable=False),
        sa.Column("appended_ms", _Number, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "producer_copies",
        sa.Column("managed_id", _Number, primary_key=True),
        sa.Column("producer", _Text, primary_key=True),
        sa.Column("last", _Number, primary_key=True),
        sa.Column("first", _Number, nullable=False),
        sa.Column("ledger_id", _Number, nullable=False),
        sa.Column("entry_id", _Number, nullable=False),
        sa.Column("txn", _Text),
        sa.Column("branch", _Number),
        sa.Column("sequences_through", _Number, nullable=False),
        sa.Column("appended_ms", _Number, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "highest_txn_numbers",
        sa.Column("coordinator", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("number", _Text, nullable=False),
    )
