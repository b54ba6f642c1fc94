"""Snapshots of a topic's state, stored beside it, so that recovery does not read the topic from its beginning."""

from __future__ import annotations

from dataclasses import dataclass

from txnframework.errors import CorruptEntry, EntryTrimmed, LedgerNotFound
from txnframework.interfaces import ILedgerStore, IManagedLedger
from txnframework.model import EARLIEST, Append, Branch, LedgerSummary, Position
from txnframework_legacy.buffer.documents import DocumentLedger, encode, read_document
from txnframework_legacy.buffer.snapshot_format import (
    AbortedSegment,
    SegmentReference,
    Snapshot,
    decode_segment,
    documents_of,
    snapshot_of,
    state_of,
)
from txnframework_legacy.buffer.state import AbortedBranch, TopicState
from txnframework_legacy.ledger_names import ABORTED_SEGMENTS, SNAPSHOTS, ledger_name

LEDGERS_PAGE = 100


def segments_name(segment: str, life: int) -> str:
    """Return the name of the ledger that holds the segments of a topic's aborted set."""
    return ledger_name(ABORTED_SEGMENTS, segment, life)


class AbortedSegments:
    """
    The segments of one topic's aborted set, of all processes, each in a ledger of its own.

    A segment is trimmed when all entries of its branches are trimmed, whether or not a snapshot refers to it. So no
    process can trim a segment that another process still needs. A reference to a trimmed segment means no branches.
    """

    def __init__(self, ledgers: ILedgerStore, name: str, entry_bytes_max: int) -> None:
        self._ledgers = ledgers
        self._name = name
        self._entry_bytes_max = entry_bytes_max
        self._ledger: IManagedLedger | None = None

    async def add(self, aborted: list[tuple[Branch, AbortedBranch]]) -> SegmentReference:
        """Write a segment and return the reference to it."""
        entries = tuple(map(Append, encode(AbortedSegment(aborted=documents_of(aborted)), self._entry_bytes_max)))
        self._ledger = self._ledger or await self._ledgers.create(self._name)
        await self._ledger.roll()
        appended = await self._ledger.append(entries, None)
        return SegmentReference(
            at=str(appended[-1].position),
            upto=str(aborted[-1][1].marker),
            last_ledger=max(one.last.ledger_id for _, one in aborted),
        )

    async def read(self, reference: SegmentReference) -> dict[Branch, AbortedBranch]:
        """
        Return the branches of a segment; an empty dictionary if it was trimmed.

        :raises CorruptEntry: the segment was never stored.
        """
        at = Position.parse(reference.at)
        ledger = await self._opened()
        try:
            entries = [] if ledger is None else await read_document(ledger, at)
        except EntryTrimmed:
            return {}
        if not entries:
            raise CorruptEntry(at, "a snapshot refers to it, but there is no entry", self._name)
        return decode_segment(entries, self._name)

    async def trim(self, first_ledger_id: int) -> None:
        """Trim the segments whose branches have no entry in the topic's ledger ``first_ledger_id`` or a later one."""
        ledger = await self._opened()
        if ledger is None:
            return
        below = -1
        for one in await ledger.ledgers(-1, LEDGERS_PAGE):
            if not one.entries or await self._last_ledger(ledger, one) >= first_ledger_id:
                break
            if one.ledger_id == (await ledger.tail()).open_ledger_id:
                await ledger.roll()
                # Another process may have added a segment since the check. The closed ledger gets no more, so check
                # again.
                (closed,) = await ledger.ledgers(one.ledger_id - 1, 1)
                if await self._last_ledger(ledger, closed) >= first_ledger_id:
                    break
            below = one.ledger_id + 1
        if below > 0:
            await ledger.trim(below, frozenset())

    async def close(self) -> None:
        """Close the ledger."""
        if self._ledger is not None:
            await self._ledger.close()

    async def _opened(self) -> IManagedLedger | None:
        try:
            self._ledger = self._ledger or await self._ledgers.open(self._name)
        except LedgerNotFound:
            return None
        return self._ledger

    async def _last_ledger(self, ledger: IManagedLedger, summary: LedgerSummary) -> int:
        """Return the last ledger of the topic with an entry of a branch in these segments; -1 if there is none."""
        found, at = -1, Position(summary.ledger_id, summary.entries - 1)
        while at.entry_id >= 0:
            try:
                entries = await read_document(ledger, at)
            except EntryTrimmed:
                return found  # trimmed by another process
            aborted = decode_segment(entries, self._name)
            found = max([found, *(one.last.ledger_id for one in aborted.values())])
            at = Position(at.ledger_id, at.entry_id - len(entries))
        return found


ENTRY_BYTES_MAX = 256 * 1024


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    """
    Options for writing snapshots. Snapshots that were written with other options are readable.

    ``segment_branches`` is how many aborted branches make a segment, which is written once and then referred to. All
    branches of one transaction are in one segment. None: each snapshot holds all aborted branches.
    """

    segment_branches: int | None = None
    entry_bytes_max: int = ENTRY_BYTES_MAX


def snapshots_name(segment: str, life: int) -> str:
    """Return the name of the ledger that holds a topic's snapshots."""
    return ledger_name(SNAPSHOTS, segment, life)


class Snapshots:
    """
    The snapshots of one topic; the last one counts, and older ones are trimmed.

    Several processes may write them concurrently. Each continues from the last snapshot, whichever process wrote it.
    All processes derive the same state from the topic, so all can use one process's segments.
    """

    def __init__(self, ledgers: ILedgerStore, segment: str, life: int, options: SnapshotOptions) -> None:
        self._documents = DocumentLedger(ledgers, snapshots_name(segment, life), Snapshot, options.entry_bytes_max)
        self._options = options
        self._segments = AbortedSegments(ledgers, segments_name(segment, life), options.entry_bytes_max)
        self._trimmed_to: int | None = None

    @property
    def exist(self) -> bool:
        """Whether this process has read or written a snapshot of the topic."""
        return self._documents.exists

    async def last(self) -> TopicState | None:
        """Return the state of the last snapshot; None if there is none."""
        found = await self._documents.last()
        if found is None:
            return None
        snapshot, at = found
        sealed: dict[Branch, AbortedBranch] = {}
        for reference in snapshot.segments:
            sealed |= await self._segments.read(reference)
        try:
            return state_of(snapshot, sealed)
        except ValueError as error:
            raise CorruptEntry(at, f"not a snapshot: {error}", self._documents.name) from error

    async def write(self, state: TopicState, first_ledger_id: int) -> None:
        """
        Write a snapshot, then trim the older ones.

        Aborted branches are included if they have entries in the topic's ledger ``first_ledger_id`` or a later one.
        After a crash between a segment and the snapshot that refers to it, the segment is left over. It is trimmed like
        any other one.
        """
        found = await self._documents.last()
        before = None if found is None else found[0]
        if before is not None and Position.parse(before.upto) > state.upto:
            return  # another process has read further
        segments: list[SegmentReference] = []
        aborted = state.aborted_since(EARLIEST, first_ledger_id)
        if self._options.segment_branches is not None:
            segments = [one for one in (before.segments if before else ()) if one.last_ledger >= first_ledger_id]
            sealed_upto = max((Position.parse(one.upto) for one in segments), default=EARLIEST)
            aborted = state.aborted_since(sealed_upto, first_ledger_id)
            while len(aborted) >= self._options.segment_branches:
                full = _whole_markers(aborted, self._options.segment_branches)
                segments.append(await self._segments.add(aborted[:full]))
                # The state is read again, like the state that is written: a concurrent read may have advanced it.
                sealed_upto = Position.parse(segments[-1].upto)
                aborted = state.aborted_since(sealed_upto, first_ledger_id)
        await self._documents.write(snapshot_of(state, segments, aborted))
        if first_ledger_id != self._trimmed_to:
            await self._segments.trim(first_ledger_id)
            self._trimmed_to = first_ledger_id

    async def close(self) -> None:
        """Close the ledgers."""
        await self._segments.close()
        await self._documents.close()


def _whole_markers(aborted: list[tuple[Branch, AbortedBranch]], at_least: int) -> int:
    """Return the length of the first segment: at least ``at_least``, extended to all branches of its last marker."""
    last = aborted[at_least - 1][1].marker
    return next((at for at in range(at_least, len(aborted)) if aborted[at][1].marker != last), len(aborted))
