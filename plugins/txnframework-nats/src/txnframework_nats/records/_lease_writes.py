"""The writes of leases: heartbeats, grants, releases, and the end of a life of a session with its leases."""

from __future__ import annotations

from collections.abc import Sequence

from txnframework.errors import Unavailable
from txnframework.model import Expect, Key, Put, Record
from txnframework.model.paths import leases_range
from txnframework_nats.connection._connection import BATCH_MESSAGES_MAX, Message
from txnframework_nats.connection._failures import RequestRefused
from txnframework_nats.records._feed import Feed
from txnframework_nats.records._layout import (
    EXPECTED_HEADER,
    LIFE_HEADER,
    ROLLUP,
    WRITE_HEADER,
    Layout,
    encode_delete,
    encode_put,
    record_id,
)
from txnframework_nats.records._sessions import SessionTable, decode_lease, encode_heartbeat
from txnframework_nats.records._writer import Writer

_ATTEMPTS_MAX = 100
_ALL = 1 << 31


class LeaseWrites:
    """Messages of leases and sessions, and writes that are tried again after a lost race."""

    def __init__(self, feed: Feed, writer: Writer, layout: Layout, table: SessionTable, ttl_ms: int) -> None:
        self._feed = feed
        self._writer = writer
        self._layout = layout
        self._table = table
        self._ttl_ms = ttl_ms

    def heartbeat(self, life: str, write: str) -> Message:
        """Return the next heartbeat of a life; it excludes the end of that life by others."""
        known = self._table.get(life)
        headers = {WRITE_HEADER: write, EXPECTED_HEADER: str(known.sequence if known else 0), **ROLLUP}
        return Message(self._layout.session(life), encode_heartbeat(self._ttl_ms), headers)

    def grant(self, key: Key, value: bytes, write: str) -> Message:
        """Return the message that writes the record of a lease."""
        place = record_id(key)
        headers = {WRITE_HEADER: write, EXPECTED_HEADER: str(self._feed.copy.sequence(place)), **ROLLUP}
        return Message(self._layout.record(place), encode_put(place, Put(key, value, Expect.ABSENT)), headers)

    def _deletion(self, key: Key, version: int, write: str) -> Message:
        place = record_id(key)
        headers = {WRITE_HEADER: write, EXPECTED_HEADER: str(version), LIFE_HEADER: self._writer.deleted_life, **ROLLUP}
        return Message(self._layout.record(place), encode_delete(place), headers)

    async def delete(self, key: Key, version: int) -> None:
        """Delete the record of a lease if it still has this version."""
        write = self._writer.next_write()
        for _ in range(_ATTEMPTS_MAX):
            try:
                await self._writer.send([self._deletion(key, version, write)], write)
            except RequestRefused as error:
                require_lost_race(error)
                await self._feed.current()
                record = self._feed.copy.get(record_id(key))
                if record is not None and record.version == version:
                    continue  # it was refused because of another write under way
            return
        raise Unavailable(f"{key.path} was changed by others {_ATTEMPTS_MAX} times")

    async def end_life(self, life: str, is_own: bool) -> None:
        """
        End a life of a session, and delete its leases.

        The end is in the last batch. After a crash between two batches the session has fewer leases, and is ended by
        the process that finds it expired.

        :param is_own: no other process renews it.
        """
        for _ in range(_ATTEMPTS_MAX):
            await self._feed.current()
            known = self._table.get(life)
            if known is None or known.ttl_ms is None:
                return
            leases = self._leases_of(life)
            some, rest = leases[: BATCH_MESSAGES_MAX - 1], leases[BATCH_MESSAGES_MAX - 1 :]
            write = self._writer.next_write()
            messages = [self._deletion(record.key, record.version, write) for record in some]
            expected = {WRITE_HEADER: write, EXPECTED_HEADER: str(known.sequence), **ROLLUP}
            if rest:
                messages.append(Message(self._layout.session(life), encode_heartbeat(0), expected))
            else:
                expected[LIFE_HEADER] = self._writer.deleted_life
                messages.append(Message(self._layout.session(life), encode_heartbeat(0, is_ended=True), expected))
            try:
                await self._writer.send(messages, write)
            except RequestRefused as error:
                require_lost_race(error)
                await self._feed.current()
                now_known = self._table.get(life)
                if now_known == known and not await self._writer.has_messages(self._layout.session(life)):
                    # It has ended, and the stream has dropped the message of its end.
                    self._table.forget(life)
                if now_known != known and not is_own:
                    return  # another process has ended it, or its holder has renewed it
                continue
            if not rest:
                return
        raise Unavailable(f"session {life} was changed by others {_ATTEMPTS_MAX} times")

    def _leases_of(self, life: str) -> Sequence[Record]:
        records = self._feed.copy.scan(leases_range(""), _ALL).records
        return [record for record in records if decode_lease(record).life == life]


def require_lost_race(error: RequestRefused) -> None:
    """Raise Unavailable for a refusal that is not due to another write."""
    if not error.is_lost_race:
        raise Unavailable(f"the servers refuse a write of a lease: {error}") from error
