"""Run by Alembic: apply the revisions on the connection, and in the transaction, of whoever asks for the upgrade."""

from __future__ import annotations

from alembic import context

from txnframework_sql.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
)
context.run_migrations()
