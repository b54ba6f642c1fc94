"""The identities of a database."""

from __future__ import annotations

from sqlalchemy import bindparam, insert, select, update

from txnframework.errors import CorruptRecord, StoreMismatch
from txnframework_sql.schema import store
from txnframework_sql.steps.statements import Steps, row, write

_GET = select(store.c.value).where(store.c.name == bindparam("of_name"))
_SET = insert(store).values(name=bindparam("name"), value=bindparam("value"))
_CHANGE = update(store).where(store.c.name == bindparam("of_name")).values(value=bindparam("value"))

_IDENTITY = "identity"
_LEDGER_IDENTITY = "ledger-identity"


def identity() -> Steps[str]:
    """Return the identity of the metadata store, given when the database was created."""
    found = yield from row(_GET, of_name=_IDENTITY)
    if found is None:
        raise CorruptRecord("/store", _IDENTITY, "the database has no identity")
    return str(found[0])


def take_identity(identity: str) -> Steps[None]:
    """Replace the identity of the metadata store."""
    yield from write(_CHANGE, of_name=_IDENTITY, value=identity)


def take_ledger_identity(identity: str) -> Steps[None]:
    """Bind the ledgers to a metadata store of another identity."""
    yield from write(_CHANGE, of_name=_LEDGER_IDENTITY, value=identity)


def known_ledger_identity() -> Steps[str | None]:
    """Return the identity that the ledgers are bound to, or None if they were never opened."""
    found = yield from row(_GET, of_name=_LEDGER_IDENTITY)
    return None if found is None else str(found[0])


def ledger_identity(expected: str | None, shown_url: str) -> Steps[str]:
    """
    Return the identity of the metadata store that the ledgers belong to.

    The first opening binds the ledgers: to ``expected`` or, if that is None, to the metadata store in the same
    database.

    :raises StoreMismatch: the ledgers belong to another metadata store; nothing was changed.
    """
    found = yield from known_ledger_identity()
    if found is None:
        chosen = expected or (yield from identity())
        yield from write(_SET, name=_LEDGER_IDENTITY, value=chosen)
        return chosen
    if expected is not None and found != expected:
        raise StoreMismatch(f"the ledgers in {shown_url} belong to {found}, the metadata store is {expected}")
    return found
