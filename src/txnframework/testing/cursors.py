"""A subscription's cursor for the suites: one record in the metadata store, as every process sees it."""

from __future__ import annotations

from zope.interface import implementer

from txnframework.errors import Unavailable, VersionMismatch
from txnframework.interfaces import ICursor, IMetadataStore
from txnframework.model.acks import Ack, ProcessedRange
from txnframework.model.cursor import Cursor, from_record, to_record, unite
from txnframework.model.metadata import Expect, Put, Record
from txnframework.model.paths import cursor_key
from txnframework.model.positions import EARLIEST, Position
from txnframework.model.records import CursorRecord, decode, encode

ATTEMPTS_MAX = 100


@implementer(ICursor)
class SuiteCursor:
    """
    A cursor that is there from the beginning, before every entry; ``history`` holds what this process was told of.

    The broker's own cursor belongs to a topic, of which the suites know nothing.
    """

    def __init__(self, store: IMetadataStore, segment: str, subscription: str) -> None:
        self.segment: str = segment
        self.subscription: str = subscription
        self.history: list[ProcessedRange] = []
        self._store = store
        self._key = cursor_key(segment, subscription)

    async def load(self) -> Cursor:
        """Return it as it is now."""
        return _cursor_of(await self._store.get(self._key))

    async def apply(self, incarnation: int, acks: tuple[Ack, ...], processed: ProcessedRange | None) -> bool:
        """Unite ``acks`` with it by compare-and-set, unless it has another incarnation."""
        for _ in range(ATTEMPTS_MAX):
            record = await self._store.get(self._key)
            cursor = _cursor_of(record)
            if cursor.incarnation != incarnation:
                return False
            if processed is not None and processed not in self.history:
                self.history.append(processed)
            try:
                await self._write(record, unite(cursor, acks))
            except VersionMismatch:
                continue
            return True
        raise Unavailable("the cursor changes too often")

    async def seek(self, to: Position) -> None:
        """Move it as a user does: what was gathered before has no effect any more."""
        record = await self._store.get(self._key)
        await self._write(record, Cursor(_cursor_of(record).incarnation + 1, to))

    async def _write(self, record: Record | None, cursor: Cursor) -> None:
        expected = Expect.ABSENT if record is None else record.version
        await self._store.put(Put(self._key, encode(to_record(cursor)), expected))


def _cursor_of(record: Record | None) -> Cursor:
    return Cursor(1, EARLIEST) if record is None else from_record(decode(CursorRecord, record))
