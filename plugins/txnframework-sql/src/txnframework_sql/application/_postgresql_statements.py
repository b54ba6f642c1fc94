"""The statements that join a transaction of the application on PostgreSQL."""

from __future__ import annotations

from txnframework_sql.postgresql._connection import SCHEMA

# Every name has its schema, because the search path is the application's. A transaction is identified by its server
# process and the time of its beginning. An id would have to be assigned, also to a transaction that writes nothing.
_BEGAN = "(EXTRACT(epoch FROM pg_catalog.now()) * 1000000)::bigint"
MARK = "joined"
"""Marks the transaction; a ROLLBACK TO an older savepoint removes the mark."""
# The records show whether the tables are there, and whether they may be read.
JOIN = f"""
SELECT pg_catalog.pg_try_advisory_xact_lock_shared($1::bigint),
    pg_catalog.pg_is_in_recovery() OR pg_catalog.current_setting('transaction_read_only') = 'on',
    pg_catalog.pg_backend_pid()::bigint, {_BEGAN},
    pg_catalog.set_config('txnframework.joined', '{MARK}', true)
FROM (SELECT 1) AS one LEFT JOIN {SCHEMA}.records r ON false
"""  # noqa: S608 - names of our own
IS_JOINED = f"pg_catalog.pg_backend_pid() = $1::bigint AND {_BEGAN} = $2::bigint"
