"""Snapshots of a topic's state, stored beside it, so that recovery does not read the topic from its beginning."""

from __future__ import annotations

from dataclasses import dataclass

from txnframework.errors import CorruptEntry, EntryTrimmed, LedgerNotFound
from txnframework.interfaces import ILedgerStore, IManagedLedger
from txnframework.model import EARLIEST, Append, Branch, Position
from txnframework_legacy.beside import SNAPSHOTS, beside
from txnframework_legacy.buffer.documents import read_document
from txnframework_legacy.buffer.segments import AbortedSegments, segments_name
from txnframework_legacy.buffer.snapshot_format import (
    SegmentReference,
    Snapshot,
    decode_snapshot,
    encode,
    snapshot_of,
    state_of,
)
from txnframework_legacy.buffer.states import Dropped, TopicState

ENTRY_BYTES_MAX = 256 * 1024


@dataclass(frozen=True, slots=True)
class SnapshotForm:
    """
    How snapshots are written; all forms are readable.

    ``segment_branches`` is how many aborted branches make a segment, which is written once and then referred to. All
    branches of one transaction are in one segment. None: each snapshot holds all aborted branches.
    """

    segment_branches: int | None = None
    entry_bytes_max: int = ENTRY_BYTES_MAX


def snapshots_name(segment: str, life: int) -> str:
    """Return the name of the ledger that holds a topic's snapshots."""
    return beside(SNAPSHOTS, segment, life)


class Snapshots:
    """
    The snapshots of one topic; the last one counts, and older ones are trimmed.

    Several processes may write them concurrently. Each continues from the last snapshot, whichever process wrote it.
    All processes derive the same state from the topic, so all can use one process's segments.
    """

    def __init__(self, ledgers: ILedgerStore, segment: str, life: int, form: SnapshotForm) -> None:
        self._ledgers = ledgers
        self._name = snapshots_name(segment, life)
        self._form = form
        self._segments = AbortedSegments(ledgers, segments_name(segment, life), form.entry_bytes_max)
        self._ledger: IManagedLedger | None = None
        self._trimmed_to: int | None = None

    @property
    def are_written(self) -> bool:
        """Whether this process has read or written a snapshot of the topic."""
        return self._ledger is not None

    async def last(self) -> TopicState | None:
        """Return the state of the last snapshot; None if there is none."""
        found = await self._last()
        if found is None:
            return None
        snapshot, at = found
        sealed: dict[Branch, Dropped] = {}
        for reference in snapshot.segments:
            sealed |= await self._segments.read(reference)
        try:
            return state_of(snapshot, sealed)
        except ValueError as error:
            raise CorruptEntry(at, f"it is no snapshot: {error}", self._name) from error

    async def write(self, state: TopicState, first_ledger_id: int) -> None:
        """
        Write a snapshot, then trim the older ones.

        Aborted branches are included if they have entries in the topic's ledger ``first_ledger_id`` or a later one.
        After a crash between a segment and the snapshot that refers to it, the segment is left over. It is trimmed like
        any other one.
        """
        found = await self._last()
        before = None if found is None else found[0]
        if before is not None and Position.parse(before.upto) > state.upto:
            return  # another process has read further
        segments: list[SegmentReference] = []
        aborted = state.aborted_since(EARLIEST, first_ledger_id)
        if self._form.segment_branches is not None:
            segments = [one for one in (before.segments if before else ()) if one.last_ledger >= first_ledger_id]
            sealed_upto = max((Position.parse(one.upto) for one in segments), default=EARLIEST)
            aborted = state.aborted_since(sealed_upto, first_ledger_id)
            while len(aborted) >= self._form.segment_branches:
                full = _whole_markers(aborted, self._form.segment_branches)
                segments.append(await self._segments.add(aborted[:full]))
                # The state is read again, like the state that is written: a concurrent read may have advanced it.
                sealed_upto = Position.parse(segments[-1].upto)
                aborted = state.aborted_since(sealed_upto, first_ledger_id)
        await self._append(snapshot_of(state, segments, aborted))
        if first_ledger_id != self._trimmed_to:
            await self._segments.trim(first_ledger_id)
            self._trimmed_to = first_ledger_id

    async def close(self) -> None:
        """Close the ledgers."""
        await self._segments.close()
        if self._ledger is not None:
            await self._ledger.close()

    async def _append(self, snapshot: Snapshot) -> None:
        entries = tuple(map(Append, encode(snapshot, self._form.entry_bytes_max)))
        self._ledger = self._ledger or await self._ledgers.create(self._name)
        await self._ledger.roll()
        appended = await self._ledger.append(entries, None)
        await self._ledger.trim(appended[0].position.ledger_id, frozenset())

    async def _last(self) -> tuple[Snapshot, Position] | None:
        """Return the last snapshot and the position of its last entry."""
        try:
            self._ledger = self._ledger or await self._ledgers.open(self._name)
        except LedgerNotFound:
            return None
        while True:
            last = (await self._ledger.tail()).last_confirmed
            if last.entry_id < 0:
                return None
            try:
                entries = await read_document(self._ledger, last)
            except EntryTrimmed:
                continue  # another process has written a newer one and trimmed this one
            return (decode_snapshot(entries, self._name), last) if entries else None


def _whole_markers(aborted: list[tuple[Branch, Dropped]], at_least: int) -> int:
    """Return the length of the first segment: at least ``at_least``, extended to all branches of its last marker."""
    last = aborted[at_least - 1][1].marker
    return next((at for at in range(at_least, len(aborted)) if aborted[at][1].marker != last), len(aborted))
