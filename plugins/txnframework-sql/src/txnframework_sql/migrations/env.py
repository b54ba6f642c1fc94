"""Alembic's environment: applies the revisions in the caller's transaction, or renders them as text."""

from __future__ import annotations

from alembic import context

from txnframework_sql.schema import VERSION_TABLE, metadata

if context.is_offline_mode():
    context.configure(
        dialect_name=context.config.attributes["dialect"],
        # The rendered text is executed without parameters, so percent signs are not doubled.
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
