"""The statements that join a transaction of the application on PostgreSQL, and write a record in it."""

from __future__ import annotations

from txnframework_sql.postgresql._connection import SCHEMA
from txnframework_sql.schema import NUMBERS

# Every name has its schema, because the search path is the application's. A transaction is identified by its server
# process and the time of its beginning. An id would have to be assigned, also to a transaction that writes nothing.
_BEGAN = "(EXTRACT(epoch FROM pg_catalog.now()) * 1000000)::bigint"
JOIN = f"""
SELECT pg_catalog.pg_try_advisory_xact_lock_shared($1::bigint),
    pg_catalog.pg_is_in_recovery() OR pg_catalog.current_setting('transaction_read_only') = 'on',
    pg_catalog.current_setting('transaction_isolation'),
    pg_catalog.current_setting('idle_in_transaction_session_timeout'),
    pg_catalog.pg_backend_pid()::bigint, {_BEGAN},
    r.version, r.indexes, pg_catalog.set_config('txnframework.joined', $2::text, true)
FROM (SELECT 1) AS one LEFT JOIN {SCHEMA}.records r ON r.path = $2::text AND r.partition = $3::text
"""  # noqa: S608 - a name of our own
IS_JOINED = f"pg_catalog.pg_backend_pid() = $1::bigint AND {_BEGAN} = $2::bigint"
# The join sets this for the transaction. A ROLLBACK TO an older savepoint resets it.
_IS_KEPT = "pg_catalog.current_setting('txnframework.joined', true) IS NOT DISTINCT FROM $4::text"
# A process that stops before its COMMIT must not hold the record's lock, and a confirmed commit must be on disk.
_BOUND = """pg_catalog.set_config('idle_in_transaction_session_timeout', $3::text, true),
    CASE WHEN pg_catalog.current_setting('synchronous_commit') = 'off'
        THEN pg_catalog.set_config('synchronous_commit', 'on', true) END"""
# A row written in a savepoint has the savepoint's own transaction id.
REPLACE = f"""
WITH joined AS (
    SELECT {IS_JOINED} AS is_same, {_IS_KEPT} AS is_kept
), written AS (
    UPDATE {SCHEMA}.records r
    SET version = pg_catalog.nextval('{SCHEMA}.{NUMBERS}'), indexes = $7::text, value = $6::bytea
    WHERE r.path = $4::text AND r.partition = $5::text AND r.version = $8::bigint
        AND r.indexes IS NOT DISTINCT FROM $9::text AND (SELECT is_same AND is_kept FROM joined)
    RETURNING r.version, r.xmin AS writer
), removed AS (
    DELETE FROM {SCHEMA}.index_entries e
    USING written, ROWS FROM (pg_catalog.unnest($10::text[]), pg_catalog.unnest($11::bytea[])) AS removed (name, key)
    WHERE e.index_name = removed.name AND e.key = removed.key AND e.path = $4::text AND e.partition = $5::text
), added AS (
    INSERT INTO {SCHEMA}.index_entries (index_name, key, path, partition)
    SELECT added.name, added.key, $4::text, $5::text
    FROM written, ROWS FROM (pg_catalog.unnest($12::text[]), pg_catalog.unnest($13::bytea[])) AS added (name, key)
)
SELECT joined.is_same, joined.is_kept, done.version, done.is_outermost
FROM joined LEFT JOIN LATERAL (
    SELECT version, writer = pg_catalog.pg_current_xact_id()::xid AS is_outermost,
        {_BOUND}
    FROM written
) done ON true
"""  # noqa: S608 - names of our own
BIND = f"SELECT {IS_JOINED}, {_IS_KEPT}, {_BOUND}"
IS_OUTERMOST = f"""
SELECT r.xmin = pg_catalog.pg_current_xact_id()::xid FROM {SCHEMA}.records r
WHERE r.path = $1::text AND r.partition = $2::text
"""  # noqa: S608 - a name of our own
NEW_NUMBER = f"SELECT pg_catalog.nextval('{SCHEMA}.{NUMBERS}')"
