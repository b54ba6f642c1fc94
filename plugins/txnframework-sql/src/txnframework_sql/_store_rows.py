"""The identities of a database, as rows."""

from __future__ import annotations

from sqlalchemy import bindparam, insert, select, update

from txnframework.errors import CorruptRecord, StoreMismatch
from txnframework_sql._database import Database
from txnframework_sql.schema import store

_GET = select(store.c.value).where(store.c.name == bindparam("of_name"))
_SET = insert(store).values(name=bindparam("name"), value=bindparam("value"))
_CHANGE = update(store).where(store.c.name == bindparam("of_name")).values(value=bindparam("value"))

_IDENTITY = "identity"
_LEDGER_IDENTITY = "ledger-identity"


def identity(database: Database) -> str:
    """Return the name that was given to the metadata store when the database was made."""
    found = database.row(_GET, of_name=_IDENTITY)
    if found is None:
        raise CorruptRecord("/store", _IDENTITY, "the database has no identity")
    return str(found[0])


def take_identity(database: Database, identity: str) -> None:
    """Give the metadata store another name."""
    database.write(_CHANGE, of_name=_IDENTITY, value=identity)


def take_ledger_identity(database: Database, identity: str) -> None:
    """Let the ledgers belong to a metadata store of another name."""
    database.write(_CHANGE, of_name=_LEDGER_IDENTITY, value=identity)


def known_ledger_identity(database: Database) -> str | None:
    """Return the identity that the ledgers have taken on, or None if nobody has opened them yet."""
    found = database.row(_GET, of_name=_LEDGER_IDENTITY)
    return None if found is None else str(found[0])


def ledger_identity(database: Database, expected: str | None) -> str:
    """
    Return the identity of the metadata store that the ledgers belong to.

    The first opening decides it: for ``expected``, or, where None is given, for the metadata store in the same
    database.

    :raises StoreMismatch: they belong to another one; nothing was changed.
    """
    found = known_ledger_identity(database)
    if found is None:
        chosen = expected or identity(database)
        database.write(_SET, name=_LEDGER_IDENTITY, value=chosen)
        return chosen
    if expected is not None and found != expected:
        raise StoreMismatch(f"the ledgers in {database.shown_url} belong to {found}, the metadata store is {expected}")
    return found
