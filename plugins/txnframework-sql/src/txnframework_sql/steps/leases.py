"""Steps on sessions and leases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
from sqlalchemy import bindparam, case, delete, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from txnframework.model import Delete, Expect, Key, Put
from txnframework.model.paths import lease_key
from txnframework_sql.schema import leases, sessions
from txnframework_sql.steps.record_writes import delete_record, put_record
from txnframework_sql.steps.statements import Row, Steps, row, rows, write

_EXPIRED = select(sessions.c.session).where(sessions.c.expires_ms <= bindparam("now_ms")).order_by(sessions.c.session)
_LOCK_EXPIRED = _EXPIRED.with_for_update()
# It keeps others from ending the session, and lets the session's own heartbeats extend it.
_KEEP_SESSION = (
    select(sessions.c.expires_ms)
    .where(sessions.c.session == bindparam("of_session"))
    .with_for_update(read=True, key_share=True)
)
_DELETE_SESSION = delete(sessions).where(sessions.c.session == bindparam("of_session"))
# Both SQLite and PostgreSQL have their own kind of insert; this one compiles for both.
_JOIN = upsert(sessions).values(session=bindparam("session"), expires_ms=bindparam("expires_ms"))
# A heartbeat may have been told a later time while an acquisition waited.
_LATER = case(
    (sessions.c.expires_ms > _JOIN.excluded.expires_ms, sessions.c.expires_ms), else_=_JOIN.excluded.expires_ms
)
_JOIN = _JOIN.on_conflict_do_update(index_elements=[sessions.c.session], set_={"expires_ms": _LATER})
_EXTEND = (
    update(sessions)
    .where(sessions.c.session == bindparam("of_session"), sessions.c.expires_ms > bindparam("now_ms"))
    .values(expires_ms=bindparam("expires_ms"))
)
_LOOK = select(leases.c.session, leases.c.holder, leases.c.fencing).where(leases.c.name == bindparam("of_name"))
_HELD = _LOOK.with_for_update()
_OF_SESSION = select(leases.c.name).where(leases.c.session == bindparam("of_session")).order_by(leases.c.name)
_TAKE = insert(leases).values({name: bindparam(name) for name in ("name", "session", "holder", "fencing")})
_NUMBER = update(leases).where(leases.c.name == bindparam("of_name")).values(fencing=bindparam("fencing"))
_RELEASE = delete(leases).where(
    leases.c.name == bindparam("of_name"),
    leases.c.session == bindparam("of_session"),
    leases.c.fencing == bindparam("of_fencing"),
)


Clock = Callable[[], Steps[int]]
"""
Returns the time in milliseconds by which leases expire. All users of the database must share one clock.

On one machine it is the clock of the machine, otherwise the database's own.
"""


def clock_of(now_ms: Callable[[], int]) -> Clock:
    """Return a clock that does not query the database."""

    def now() -> Steps[int]:
        yield from ()
        return now_ms()

    return now


class LeaseDocument(msgspec.Struct, kw_only=True):
    """The content of a lease's record."""

    format: int = 1
    holder: str
    session: str


@dataclass(frozen=True, slots=True)
class Granted:
    """The session holds the lease; ``fencing`` is also the version of its record."""

    key: Key
    fencing: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Another session, or another holder in this session, holds the lease."""

    key: Key
    holder: str


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """
    A request of a session for leases: their names and holders, and the session's lifetime.

    ``anew``: the session dropped its leases locally. The database must then release them as well.
    """

    wanted: tuple[tuple[str, str], ...]
    session: str
    ttl_ms: int
    anew: bool


def acquire_leases(request: LeaseRequest, clock: Clock) -> Steps[tuple[Granted | Refused, ...]]:
    """
    Acquire each lease that is free, or whose session has expired, and extend the own session; answer in their order.

    The leases are taken in the order of their names: two requests for the same ones wait for each other at most once.
    """
    # The own session may be among the expired ones; its old leases must not become valid again.
    own = yield from row(_KEEP_SESSION, of_session=request.session)
    now_ms = yield from clock()
    yield from _end_expired(now_ms)
    if request.anew:
        yield from end_session(request.session)
    is_known = is_started = own is not None and own[0] > now_ms and not request.anew
    answers: dict[int, Granted | Refused] = {}
    for number, (name, holder) in sorted(enumerate(request.wanted), key=lambda one: one[1][0]):
        held = yield from _own_or_other(name, request.session)
        if held is not None and held[:2] != (request.session, holder):
            answers[number] = Refused(lease_key(name), held[1])
            continue
        if not is_started:
            yield from _join(request, now_ms)
            is_started = True
        fencing = held[2] if held is not None else (yield from _take(name, holder, request.session))
        answers[number] = Granted(lease_key(name), fencing)
    if is_known and any(isinstance(answer, Granted) for answer in answers.values()):
        # Last, because heartbeats wait from here until the commit; the records above may be locked for long.
        yield from _join(request, now_ms)
    return tuple(answer for _, answer in sorted(answers.items(), key=lambda one: one[0]))


def _join(request: LeaseRequest, now_ms: int) -> Steps[int]:
    """Start the session, or extend it."""
    return write(_JOIN, session=request.session, expires_ms=now_ms + request.ttl_ms)


def _own_or_other(name: str, session: str) -> Steps[Row | None]:
    """Return session, holder and fencing number of a held lease; it stays as it is only if it is the own session's."""
    held = yield from row(_LOOK, of_name=name)
    # Without a lock on the leases of others: a request holds many locks, and another one may be about to end them.
    return (yield from row(_HELD, of_name=name)) if held is not None and held[0] == session else held


def _take(name: str, holder: str, session: str) -> Steps[int]:
    """Take a free lease; return its fencing number."""
    # This row comes first, because it excludes other sessions. Otherwise a session could take its number, wait, and
    # then get the lease with a lower number than later holders that already released it.
    yield from write(_TAKE, name=name, session=session, holder=holder, fencing=0)
    document = LeaseDocument(holder=holder, session=session)
    # The number is the record's version: it grows over all records, and so over the holders of a lease.
    written = yield from put_record(Put(lease_key(name), msgspec.json.encode(document), Expect.ANY))
    yield from write(_NUMBER, of_name=name, fencing=written.version)
    return written.version


def extend(session: str, ttl_ms: int, clock: Clock) -> Steps[bool]:
    """Extend a session, and end the expired ones; return False if the session itself has expired."""
    is_extended = yield from extend_alone(session, ttl_ms, clock)
    # A watch may wait for the lease of a dead process, and no other process would wake it.
    yield from end_expired(clock)
    return is_extended


def extend_alone(session: str, ttl_ms: int, clock: Clock) -> Steps[bool]:
    """Extend a session, and touch nothing else; return False if it has expired."""
    now_ms = yield from clock()
    extended = yield from write(_EXTEND, of_session=session, now_ms=now_ms, expires_ms=now_ms + ttl_ms)
    return extended > 0


def release_lease(session: str, name: str, fencing: int) -> Steps[None]:
    """Release a lease if the session still holds it."""
    if (yield from write(_RELEASE, of_name=name, of_session=session, of_fencing=fencing)):
        yield from delete_record(Delete(lease_key(name), Expect.ANY))


def release_leases(session: str, held: Sequence[tuple[str, int]]) -> Steps[None]:
    """Release those of the leases, by name and fencing number, that the session still holds; in a fixed order."""
    for name, fencing in sorted(held):
        yield from release_lease(session, name, fencing)


def end_lease(name: str, fencing: int) -> Steps[None]:
    """Release a lease of any session if it still has this fencing number."""
    held = yield from row(_HELD, of_name=name)
    if held is not None and held[2] == fencing:
        yield from release_lease(held[0], name, fencing)


def end_session(session: str) -> Steps[None]:
    """Release every lease of a session and delete the session."""
    for (name,) in (yield from rows(_OF_SESSION, of_session=session)):
        held = yield from row(_HELD, of_name=name)
        if held is not None:
            yield from release_lease(session, name, held[2])
    yield from write(_DELETE_SESSION, of_session=session)


def has_expired(clock: Clock) -> Steps[bool]:
    """Return whether any session has expired and was not ended."""
    now_ms = yield from clock()
    return bool((yield from rows(_EXPIRED, now_ms=now_ms)))


def end_expired(clock: Clock) -> Steps[None]:
    """End every expired session."""
    yield from _end_expired((yield from clock()))


def _end_expired(now_ms: int) -> Steps[None]:
    # Locked, so that no session is extended while it ends, and in a fixed order.
    for (session,) in (yield from rows(_LOCK_EXPIRED, now_ms=now_ms)):
        yield from end_session(session)
