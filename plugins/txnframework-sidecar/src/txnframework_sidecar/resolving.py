"""From a marker to its messages."""

from __future__ import annotations

from txnframework.errors import CorruptEntry, EntryTrimmed
from txnframework.interfaces import IManagedLedger
from txnframework.model import Branch, EntryRange, LedgerEntry, Limit, Position, ReadableEntry, Visibility
from txnframework_sidecar.compaction.compacted import Compacted
from txnframework_sidecar.ledgers import TopicLedgers
from txnframework_sidecar.model.markers import Marker
from txnframework_sidecar.model.parts import Span, as_one_entry


class Resolving:
    """Reads the messages that markers list."""

    def __init__(self, ledgers: TopicLedgers, compacted: Compacted) -> None:
        self._ledgers = ledgers
        self._compacted = compacted

    async def entry(self, marker: Marker, position: Position) -> ReadableEntry:
        """
        Return the messages of a marker as one entry that stands where the marker does.

        :raises EntryTrimmed: the topic was trimmed there since the marker was read.
        """
        found = await self._compacted.find(position) if position <= self._compacted.upto else None
        if found is None:
            try:
                return await self.from_sidecar(marker, position)
            except EntryTrimmed:
                # It stays there until it was compacted, or until the topic does not refer to it any more.
                await self._compacted.refresh()
                found = await self._compacted.find(position)
        if found is None:
            raise EntryTrimmed(self._ledgers.topic.name, position)
        return _readable(found, marker, position)

    async def from_sidecar(self, marker: Marker, position: Position) -> ReadableEntry:
        """
        Return the same, from where the messages were sent.

        :raises EntryTrimmed: the sidecar was trimmed there.
        """
        sidecar = await self._ledgers.find_sidecar()
        if sidecar is None:
            raise CorruptEntry(position, "the sidecar that its marker names is not there", self._ledgers.topic.name)
        stored: list[bytes] = []
        for span in marker.part.spans:
            stored += [entry.data for entry in await _read(sidecar, span)]
        return _readable(as_one_entry(stored, Branch(marker.txn_id, marker.part.branch)), marker, position)


def _readable(data: bytes, marker: Marker, position: Position) -> ReadableEntry:
    return ReadableEntry(position, data, Branch(marker.txn_id, marker.part.branch), Visibility.COMMITTED)


async def _read(sidecar: IManagedLedger, span: Span) -> list[LedgerEntry]:
    """Return every entry of a span."""
    found: list[LedgerEntry] = []
    after = span.after
    while after < span.upto:
        page = await sidecar.read(EntryRange(after, span.upto), Limit(span.last - span.first + 1))
        if not page:
            raise CorruptEntry(span.upto, "a marker lists it, and it is not there", sidecar.name)
        found += page
        after = page[-1].position
    return found
