"""The statements that grant a login the rights that it needs, and no others."""

from __future__ import annotations

from txnframework.errors import InvalidInput
from txnframework_sql.postgresql._connection import quote_schema
from txnframework_sql.postgresql._schema import APPLY_STEPS, FUNCTIONS
from txnframework_sql.schema import NUMBERS, VERSION_TABLE, metadata

_ALL = "SELECT, INSERT, UPDATE, DELETE"
_OF_COMMITS = (
    (_ALL, ("index_entries", "records")),
    ("SELECT, UPDATE", ("ledger_segments", "managed_ledgers")),
    ("SELECT, INSERT, UPDATE", ("highest_txn_numbers",)),
    ("INSERT", ("entries",)),
)
"""What ``commit_with`` does with tables on a connection of the application."""


def grants(role: str, schema: str, shown_url: str, *, commits_only: bool) -> tuple[str, ...]:
    """
    Return the statements that the owner of the tables runs for ``role``.

    ``commits_only``: only what a connection of an application needs for ``commit_with``. Otherwise all that a process
    needs to open the stores and to use them, but not to create or upgrade tables.

    :raises InvalidInput: the role or the schema has a name that cannot be quoted.
    """
    if not role or set(role) & set('"\0'):
        raise InvalidInput(f"invalid role {role!r}: a role has a name, which holds no quote")
    within, to = quote_schema(schema, shown_url), f'TO "{role}"'
    rights = _OF_COMMITS if commits_only else ((_ALL, tuple(sorted(metadata.tables))),)
    sequences = [NUMBERS]
    if not commits_only:
        columns = [one.autoincrement_column for one in metadata.sorted_tables]
        sequences += [f"{one.table.name}_{one.name}_seq" for one in columns if one is not None]
    found = [
        f"GRANT USAGE ON SCHEMA {within} {to};",
        *(f"GRANT {right} ON {', '.join(f'{within}.{one}' for one in tables)} {to};" for right, tables in rights),
        f"GRANT USAGE ON SEQUENCE {', '.join(f'{within}.{one}' for one in sequences)} {to};",
    ]
    if not commits_only:
        found.append(f"GRANT SELECT ON {within}.{VERSION_TABLE} {to};")
    # Everyone may execute them unless the server's default rights were changed.
    functions = (APPLY_STEPS,) if commits_only else FUNCTIONS
    found += [f"GRANT EXECUTE ON FUNCTION {within}.{one.name}({', '.join(one.types)}) {to};" for one in functions]
    return tuple(found)
