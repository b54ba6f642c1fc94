"""Reading of the messages that a marker lists: from the sidecar, an own ledger, or a compacted ledger."""

from __future__ import annotations

from txnframework.errors import CorruptEntry, EntryTrimmed, LedgerNotFound
from txnframework.model import Branch, LedgerEntry, Position, ReadableEntry, Visibility
from txnframework_sidecar.compacted import CompactedLedgers
from txnframework_sidecar.ledgers import TopicLedgers
from txnframework_sidecar.markers import Marker
from txnframework_sidecar.own_ledgers import OwnLedgers, read_span
from txnframework_sidecar.parts import as_one_entry


class MessageReader:
    """Reads the messages that markers list."""

    def __init__(self, ledgers: TopicLedgers, own: OwnLedgers, compacted: CompactedLedgers) -> None:
        self._ledgers = ledgers
        self._own = own
        self._compacted = compacted

    async def entry(self, marker: Marker, position: Position) -> ReadableEntry:
        """
        Return the messages of a marker as one entry at the marker's position.

        :raises EntryTrimmed: the topic was trimmed past the marker since the marker was read.
        :raises CorruptEntry: a ledger or entry that the marker names does not exist.
        """
        if marker.part.own:
            return await self._from_own(marker, position)
        found = await self._compacted.find(position) if position <= self._compacted.upto else None
        if found is None:
            try:
                return await self.from_sidecar(marker, position)
            except EntryTrimmed:
                # The sidecar keeps the messages until they are compacted, or until the topic no longer refers to them.
                await self._compacted.refresh()
                found = await self._compacted.find(position)
        if found is None:
            raise EntryTrimmed(self._ledgers.topic.name, position)
        return _readable(found, marker, position)

    async def from_sidecar(self, marker: Marker, position: Position) -> ReadableEntry:
        """
        Return the messages of a marker from the sidecar.

        :raises EntryTrimmed: the messages were trimmed from the sidecar.
        :raises CorruptEntry: the sidecar or an entry of it does not exist.
        """
        sidecar = await self._ledgers.find_sidecar()
        if sidecar is None:
            raise CorruptEntry(position, "its marker refers to a sidecar that does not exist", self._ledgers.topic.name)
        return _together([await read_span(sidecar, span) for span in marker.part.spans], marker, position)

    async def _from_own(self, marker: Marker, position: Position) -> ReadableEntry:
        """Return the messages from the transaction's own ledger, which is kept as long as the marker."""
        try:
            found = [await self._own.read(marker.txn_id, span) for span in marker.part.spans]
        except LedgerNotFound as error:
            (first, *_) = await self._ledgers.topic.ledgers(-1, 1)
            if first.ledger_id > position.ledger_id:
                raise EntryTrimmed(self._ledgers.topic.name, position) from error
            what = f"its marker refers to the ledger of transaction {marker.txn_id}, which does not exist"
            raise CorruptEntry(position, what, self._ledgers.topic.name) from error
        return _together(found, marker, position)


def _together(spans: list[list[LedgerEntry]], marker: Marker, position: Position) -> ReadableEntry:
    stored = [entry.data for span in spans for entry in span]
    return _readable(as_one_entry(stored, Branch(marker.txn_id, marker.part.branch)), marker, position)


def _readable(data: bytes, marker: Marker, position: Position) -> ReadableEntry:
    return ReadableEntry(position, data, Branch(marker.txn_id, marker.part.branch), Visibility.COMMITTED)
