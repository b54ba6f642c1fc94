"""The messages of sessions, and what a process has observed of other sessions' heartbeats."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from txnframework.environment import Environment
from txnframework.errors import CorruptRecord, UnknownFormat
from txnframework.model import Record

SESSION_FORMAT = 1
LEASE_FORMAT = 1


class _Heartbeat(msgspec.Struct, kw_only=True):
    """The content of a session's message; ``is_ended``: its leases are free."""

    format: int = SESSION_FORMAT
    ttl_ms: int
    is_ended: bool = False


class LeaseDocument(msgspec.Struct, kw_only=True):
    """
    The content of a lease's record.

    ``life`` names the messages of the session that holds it. A session that lost its leases begins another life, so
    that no late message of the earlier one can prolong it.
    """

    format: int = LEASE_FORMAT
    holder: str
    session: str
    life: str


class _AnyDocument(msgspec.Struct):
    format: int


def encode_heartbeat(ttl_ms: int, *, is_ended: bool = False) -> bytes:
    """Return the content of a session's message."""
    return msgspec.json.encode(_Heartbeat(ttl_ms=ttl_ms, is_ended=is_ended))


def decode_lease(record: Record) -> LeaseDocument:
    """
    Return the content of a lease's record.

    :raises UnknownFormat: a later release wrote it.
    :raises CorruptRecord: it is damaged.
    """
    try:
        form = msgspec.json.decode(record.value, type=_AnyDocument).format
        if form != LEASE_FORMAT:
            raise UnknownFormat(record.key.path, form)
        return msgspec.json.decode(record.value, type=LeaseDocument)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptRecord(record.key.path, "its value", str(error)) from error


class Life(msgspec.Struct, frozen=True):
    """
    A life of a session: the number of its last message, when this process received it, and for how long it counts.

    ``ttl_ms`` None: the life has ended.
    """

    sequence: int
    seen_ms: int
    ttl_ms: int | None


class SessionTable:
    """
    The lives of all sessions, as the feed delivers their messages.

    A life has expired when this process has waited for the next heartbeat as long as the last one says. The waiting
    begins when the heartbeat is received, so later than its writer began to count. Clocks are never compared.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._lives: dict[str, Life] = {}

    def observe(self, life: str, sequence: int, payload: bytes) -> None:
        """Handle a message of a session."""
        known = self._lives.get(life)
        if known is not None and known.sequence >= sequence:
            return
        try:
            form = msgspec.json.decode(payload, type=_AnyDocument).format
            if form != SESSION_FORMAT:
                raise UnknownFormat(f"session {life}", form)
            heartbeat = msgspec.json.decode(payload, type=_Heartbeat)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptRecord(life, "its message", str(error)) from error
        ttl_ms = None if heartbeat.is_ended else heartbeat.ttl_ms
        self._lives[life] = Life(sequence, self._environment.monotonic_ms(), ttl_ms)

    def get(self, life: str) -> Life | None:
        """Return what is known of a life, or None."""
        return self._lives.get(life)

    def expired(self) -> Iterator[tuple[str, Life]]:
        """Return the lives whose next heartbeat did not come in time."""
        now_ms = self._environment.monotonic_ms()
        for name, life in tuple(self._lives.items()):
            if life.ttl_ms is not None and life.seen_ms + life.ttl_ms <= now_ms:
                yield name, life

    def forget(self, life: str) -> None:
        """Forget a life."""
        self._lives.pop(life, None)

    def forget_ended(self) -> None:
        """Forget the lives that have ended; their messages are dropped by the stream."""
        self._lives = {name: life for name, life in self._lives.items() if life.ttl_ms is not None}
