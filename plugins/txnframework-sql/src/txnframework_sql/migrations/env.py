"""Run by Alembic: apply the revisions in the transaction of whoever asks for the upgrade, or write them down."""

from __future__ import annotations

from alembic import context

from txnframework_sql.schema import VERSION_TABLE, metadata

if context.is_offline_mode():
    context.configure(
        dialect_name=context.config.attributes["dialect"],
        # What is written down is executed without parameters: a percent sign stands for itself.
        dialect_opts={"paramstyle": "named"},
        literal_binds=True,
        target_metadata=metadata,
        version_table=VERSION_TABLE,
    )
else:
    context.configure(
        connection=context.config.attributes["connection"],
        target_metadata=metadata,
        version_table=VERSION_TABLE,
    )
context.run_migrations()
