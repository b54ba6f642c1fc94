"""
In which schema the tables and functions of a store are, and how statements name them.

Another login may be allowed to create functions in that schema. So no connection searches it: a function placed there,
with argument types that fit a call better than those of PostgreSQL's own, would run with our rights. Statements name
the schema instead, written as ``HERE`` until it is known.
"""

from __future__ import annotations

from txnframework.errors import InvalidInput

HERE = "schema_of_store"
"""Stands in statements for the schema."""

PINNED_PATH = "pg_catalog, pg_temp"
"""Where a connection looks for names without a schema: among PostgreSQL's own, and nowhere else."""

# A name with one of them would end the text in which it is quoted.
_UNUSABLE = frozenset("'\"\\$\0")


def quoted(schema: str, shown_url: str) -> str:
    """
    Return a schema's name as statements hold it.

    :raises InvalidInput: there is none, or it has a name that cannot be used.
    """
    if schema in ("", "pg_catalog"):
        raise InvalidInput(
            f"{shown_url}: no schema of the user's search_path exists; make one with CREATE SCHEMA, or name another in"
            " the URL (?options=-csearch_path%3Dname)"
        )
    if _UNUSABLE & set(schema):
        raise InvalidInput(f"{shown_url}: a schema whose name holds a quote, $ or \\ cannot be used; rename it")
    return f'"{schema}"'


def qualified(text: str, schema: str) -> str:
    """Return a statement with the schema, which is quoted already, where it says ``HERE``."""
    return text.replace(f"{HERE}.", f"{schema}.")
