"""What makes a PostgreSQL server slow, though it answers."""

from __future__ import annotations

from txnframework.model.diagnoses import Diagnosis
from txnframework_sql.postgresql._pool import Pool

# Sessions of other logins show their times only to a member of pg_read_all_stats. Sessions of other databases do not
# matter for our tables.
_OLD_SNAPSHOTS = """
SELECT pid, usename, application_name, coalesce(host(client_addr), 'the server itself') AS client, state,
    (extract(epoch FROM clock_timestamp() - xact_start) * 1000)::bigint AS age_ms
FROM pg_stat_activity
WHERE datname = current_database() AND backend_xmin IS NOT NULL AND pid <> pg_backend_pid()
    AND backend_type = 'client backend' AND xact_start < clock_timestamp() - $1 * interval '1 ms'
ORDER BY xact_start LIMIT 10
"""


async def diagnose(pool: Pool, age_ms_min: int) -> tuple[Diagnosis, ...]:
    """
    Return the sessions whose transaction is old and has a snapshot.

    While it is open, the server keeps every version of every row. Records and ends of topics are rows that are written
    again for each transaction, so reading them becomes slower all the time.
    """
    rows = await pool.run(lambda connection: connection.read(_OLD_SNAPSHOTS, age_ms_min))
    return tuple(
        Diagnosis(
            f"session {pid} of {login} ({name or 'unnamed'}, from {client}, {state}) has had a transaction open for"
            f" {age_ms // 1000} s, so the server keeps all old versions of rows, and becomes slower",
            f"let its program commit, or run: SELECT pg_terminate_backend({pid})",
        )
        for pid, login, name, client, state, age_ms in rows
    )
