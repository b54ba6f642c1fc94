"""The subscription cursor of the suites: one record in the metadata store, shared by all processes."""

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
    A cursor that exists from the start, at the earliest position; ``history`` holds the ranges that were applied here.

    The broker's own cursor depends on a topic, and the suites have no topics.
    """

    def __init__(self, store: IMetadataStore, segment: str, subscription: str) -> None:
        self.segment: str = segment
        self.subscription: str = subscription
        self.history: list[ProcessedRange] = []
        self._store = store
        self._key = cursor_key(segment, subscription)

    async def load(self) -> Cursor:
        """Return the current cursor."""
        return _cursor_of(await self._store.get(self._key))

    async def apply(self, incarnation: int, acks: tuple[Ack, ...], processed: ProcessedRange | None) -> bool:
        """Merge ``acks`` into the cursor by compare-and-set; return False if its incarnation differs."""
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
        """Move the cursor as a user does, which begins a new incarnation: earlier acknowledgments no longer apply."""
        record = await self._store.get(self._key)
        await self._write(record, Cursor(_cursor_of(record).incarnation + 1, to))

    async def _write(self, record: Record | None, cursor: Cursor) -> None:
        expected = Expect.ABSENT if record is None else record.version
        await self._store.put(Put(self._key, encode(to_record(cursor)), expected))


def _cursor_of(record: Record | None) -> Cursor:
    return Cursor(1, EARLIEST) if record is None else from_record(decode(CursorRecord, record))
