"""Sessions and leases in the database: every function is one step of a transaction on its thread."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from sqlalchemy import bindparam, delete, insert, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from txnframework.model import Delete, Expect, Key, Put
from txnframework.model.paths import lease_key
from txnframework_sql._database import Database
from txnframework_sql._records import delete_record, put_record
from txnframework_sql.schema import leases, sessions

_EXPIRED = select(sessions.c.session).where(sessions.c.expires_ms <= bindparam("now_ms"))
_DELETE_SESSION = delete(sessions).where(sessions.c.session == bindparam("of_session"))
_JOIN = upsert(sessions).values(session=bindparam("session"), expires_ms=bindparam("expires_ms"))
_JOIN = _JOIN.on_conflict_do_update(index_elements=[sessions.c.session], set_={"expires_ms": _JOIN.excluded.expires_ms})
_EXTEND = (
    update(sessions)
    .where(sessions.c.session == bindparam("of_session"), sessions.c.expires_ms > bindparam("now_ms"))
    .values(expires_ms=bindparam("expires_ms"))
)
_HELD = select(leases.c.session, leases.c.holder, leases.c.fencing).where(leases.c.name == bindparam("of_name"))
_OF_SESSION = select(leases.c.name).where(leases.c.session == bindparam("of_session"))
_TAKE = insert(leases).values({name: bindparam(name) for name in ("name", "session", "holder", "fencing")})
_GIVE_UP = delete(leases).where(
    leases.c.name == bindparam("of_name"),
    leases.c.session == bindparam("of_session"),
    leases.c.fencing == bindparam("of_fencing"),
)


class LeaseDocument(msgspec.Struct, kw_only=True):
    """What the record of a lease says."""

    format: int = 1
    holder: str
    session: str


@dataclass(frozen=True, slots=True)
class Granted:
    """A lease that the session has; ``fencing`` is the version of its record as well."""

    key: Key
    fencing: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Another session, or another holder in this one, has it."""

    key: Key
    holder: str


@dataclass(frozen=True, slots=True)
class Request:
    """
    Who wants a lease, and until when its session then lives.

    ``anew``: the session has given up what it held, so that it must be taken from it here as well.
    """

    name: str
    holder: str
    session: str
    now_ms: int
    expires_ms: int
    anew: bool


def take(database: Database, request: Request) -> Granted | Refused:
    """Take a lease that is free, or whose session has expired, and keep the own session alive with it."""
    # Its own session may be among the expired ones; its old leases must not come to life again with it.
    end_expired(database, request.now_ms)
    if request.anew:
        end_session(database, request.session)
    key = lease_key(request.name)
    held = database.row(_HELD, of_name=request.name)
    if held is not None and held[:2] != (request.session, request.holder):
        return Refused(key, held[1])
    database.write(_JOIN, session=request.session, expires_ms=request.expires_ms)
    if held is not None:
        return Granted(key, held[2])
    document = LeaseDocument(holder=request.holder, session=request.session)
    # The number of the record's version: it only grows over all records, and so over the holders of a lease.
    fencing = put_record(database, Put(key, msgspec.json.encode(document), Expect.ANY)).version
    database.write(_TAKE, name=request.name, session=request.session, holder=request.holder, fencing=fencing)
    return Granted(key, fencing)


def extend(database: Database, session: str, now_ms: int, expires_ms: int) -> bool:
    """Keep a session alive, and end those that have expired; False: it has expired itself."""
    alive = database.write(_EXTEND, of_session=session, now_ms=now_ms, expires_ms=expires_ms) > 0
    # Somebody may watch the lease of a process that died, and nobody else would wake them.
    end_expired(database, now_ms)
    return alive


def give_up(database: Database, session: str, name: str, fencing: int) -> None:
    """Release a lease, if the session still has it."""
    if database.write(_GIVE_UP, of_name=name, of_session=session, of_fencing=fencing):
        delete_record(database, Delete(lease_key(name), Expect.ANY))


def end_session(database: Database, session: str) -> None:
    """Release every lease of a session and forget it."""
    for (name,) in database.rows(_OF_SESSION, of_session=session):
        held = database.row(_HELD, of_name=name)
        if held is not None:
            give_up(database, session, name, held[2])
    database.write(_DELETE_SESSION, of_session=session)


def has_expired(database: Database, now_ms: int) -> bool:
    """Return whether a session's time has passed that nobody has ended."""
    return bool(database.rows(_EXPIRED, now_ms=now_ms))


def end_expired(database: Database, now_ms: int) -> None:
    """End every session whose time has passed."""
    for (session,) in database.rows(_EXPIRED, now_ms=now_ms):
        end_session(database, session)
