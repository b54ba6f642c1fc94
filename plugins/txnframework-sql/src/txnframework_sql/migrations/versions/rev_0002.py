"""
A separate channel for each installation in a PostgreSQL database; its notifications contain no data.

The functions of earlier releases notified their writes with data, on one channel of the database, so they are dropped.
"""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_ADD_CHANNEL = """
INSERT INTO store (name, value)
SELECT 'channel', pg_catalog.replace(CAST(pg_catalog.gen_random_uuid() AS pg_catalog.text), '-', '')
"""
# Drop only functions that this user may drop. Functions of other logins with such names are never called.
_DROP_FUNCTIONS = """
DO $block$
DECLARE
    found record;
BEGIN
    FOR found IN
        SELECT CAST(f.oid AS pg_catalog.regprocedure) AS signature FROM pg_catalog.pg_proc f
        JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) f.pronamespace
        WHERE n.nspname OPERATOR(pg_catalog.=) pg_catalog.current_schema()
            AND f.proname OPERATOR(pg_catalog.~) '^txnframework_(append_entries|apply_batches|read_entries)_[0-9a-f]+$'
            AND pg_catalog.pg_has_role(f.proowner, 'USAGE')
    LOOP
        EXECUTE pg_catalog.format('DROP FUNCTION %s', found.signature);
    END LOOP;
END
$block$
"""


def upgrade() -> None:
    """Create the installation's channel; SQLite sends no notifications and needs no change."""
    if op.get_context().dialect.name == "postgresql":
        op.execute(_ADD_CHANNEL)
        op.execute(_DROP_FUNCTIONS)
