"""The text of statements: in the form of a driver, and what a statement of the application does."""

from __future__ import annotations

import re
from functools import lru_cache

_NUMBER = re.compile(r"\$(\d+)")
_COMMENTS = r"\s*(?:--[^\n]*(?:\n|\Z)\s*|/\*.*?\*/\s*)*"
_FIRST_WORD = re.compile(_COMMENTS + "([A-Za-z]+)", re.DOTALL)
_SAVEPOINT = re.compile(
    _COMMENTS + r"(?:(SAVEPOINT)|ROLLBACK\s+(?:(?:WORK|TRANSACTION)\s+)?TO(?:\s+SAVEPOINT)?)\s+([^\s;]+)",
    re.DOTALL | re.IGNORECASE,
)
_WORD = re.compile(r"[A-Za-z]+")
# Before these, Python's driver of SQLite begins a transaction by itself, with the isolation level of its connection.
_ROWS = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE"})
# These change no row. Some of them are not allowed in a transaction, or have no effect there.
_NO_ROWS = frozenset(
    {"SELECT", "VALUES", "EXPLAIN", "PRAGMA", "BEGIN", "COMMIT", "END", "ROLLBACK", "ATTACH", "DETACH", "VACUUM"}
)


def by_name(text: str, arguments: tuple[object, ...]) -> tuple[str, dict[str, object] | None]:
    """Return a statement with named parameters in place of ``$1``, as psycopg reads them, and the parameters."""
    if not arguments:
        return text, None
    return _named(text), {f"p{number}": argument for number, argument in enumerate(arguments, 1)}


def needs_begin(text: str) -> bool:
    """
    Return whether a statement on SQLite could commit by itself, unless a BEGIN was sent before it.

    Python's driver begins a transaction only for some kinds of statements. A savepoint outside a transaction commits
    when it is released. A read is not counted: in a transaction, it would fix the state that later statements see.
    """
    found = _FIRST_WORD.match(text)
    first = found[1].upper() if found else ""
    if first == "WITH":
        return not _ROWS.isdisjoint(_WORD.findall(text.upper()))
    return first not in _ROWS and first not in _NO_ROWS


def savepoint_in(text: str) -> tuple[bool, str] | None:
    """Return whether a statement goes back to a savepoint, instead of making it, and the name of that; or None."""
    found = _SAVEPOINT.match(text)
    return None if found is None else (found[1] is None, found[2].strip('"').lower())


@lru_cache(256)
def _named(text: str) -> str:
    return _NUMBER.sub(r"%(p\1)s", text.replace("%", "%%"))
