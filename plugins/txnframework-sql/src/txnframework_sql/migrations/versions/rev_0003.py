"""
The highest transaction numbers of each ledger apart.

A row for a coordinator was shared by all ledgers. Two transactions of one coordinator waited for each other at it, with
rows of an application until its COMMIT. A ledger's own row is locked with the ledger.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Keep the numbers as those of no ledger in particular."""
    if op.get_context().dialect.name == "postgresql":
        op.execute("ALTER TABLE highest_txn_numbers ADD COLUMN managed_id bigint NOT NULL DEFAULT 0")
        op.execute("ALTER TABLE highest_txn_numbers ALTER COLUMN managed_id DROP DEFAULT")
        op.execute("ALTER TABLE highest_txn_numbers DROP CONSTRAINT highest_txn_numbers_pkey")
        op.execute("ALTER TABLE highest_txn_numbers ADD PRIMARY KEY (coordinator, managed_id)")
        return
    op.rename_table("highest_txn_numbers", "shared_txn_numbers")
    op.create_table(
        "highest_txn_numbers",
        sa.Column("coordinator", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("number", sa.Text, nullable=False),
        sa.Column("managed_id", sa.Integer, primary_key=True, autoincrement=False),
    )
    op.execute("INSERT INTO highest_txn_numbers SELECT coordinator, number, 0 FROM shared_txn_numbers")
    op.drop_table("shared_txn_numbers")
