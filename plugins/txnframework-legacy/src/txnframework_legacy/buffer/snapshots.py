"""What was found in a topic, written down beside it, so that opening it does not read it from the beginning."""

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
    How snapshots are written; all forms are read alike.

    ``segment_branches``: how many aborted branches make a segment, which is written once and then referred to (all of
    one transaction stand in one segment); None: each snapshot holds all of them.
    """

    segment_branches: int | None = None
    entry_bytes_max: int = ENTRY_BYTES_MAX


def snapshots_name(segment: str, life: int) -> str:
    """Return the name of the ledger that holds a topic's snapshots."""
    return beside(SNAPSHOTS, segment, life)


class Snapshots:
    """
    The snapshots of one topic; the last one counts, and older ones are trimmed.

    Several processes write them at the same time. Each goes on from the last one, whoever wrote it: all of them find
    the same in the topic, so what one has put into segments is there for all.
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
        """Whether this process knows of any."""
        return self._ledger is not None

    async def last(self) -> TopicState | None:
        """Return what was written down last; None: nothing was."""
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
        Write a state down, but of aborted branches only those with entries in the topic's ledgers from the first one
        on; then trim what was written before.

        A crash after a segment, before the snapshot that refers to it: it is trimmed like any other once the entries
        that it tells of are gone.
        """
        found = await self._last()
        before = None if found is None else found[0]
        if before is not None and Position.parse(before.upto) > state.upto:
            return  # somebody else has come further
        segments: list[SegmentReference] = []
        aborted = state.aborted_since(EARLIEST, first_ledger_id)
        if self._form.segment_branches is not None:
            segments = [one for one in (before.segments if before else ()) if one.last_ledger >= first_ledger_id]
            sealed_upto = max((Position.parse(one.upto) for one in segments), default=EARLIEST)
            aborted = state.aborted_since(sealed_upto, first_ledger_id)
            while len(aborted) >= self._form.segment_branches:
                full = _whole_markers(aborted, self._form.segment_branches)
                segments.append(await self._segments.add(aborted[:full]))
                # Looked at again, as what is written down is: somebody may have read on meanwhile.
                sealed_upto = Position.parse(segments[-1].upto)
                aborted = state.aborted_since(sealed_upto, first_ledger_id)
        await self._append(snapshot_of(state, segments, aborted))
        if first_ledger_id != self._trimmed_to:
            await self._segments.trim(first_ledger_id)
            self._trimmed_to = first_ledger_id

    async def close(self) -> None:
        """Let the ledgers go."""
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
        """Return the last snapshot, and where its last entry stands."""
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
                continue  # somebody has written another one, and trimmed this one
            return (decode_snapshot(entries, self._name), last) if entries else None


def _whole_markers(aborted: list[tuple[Branch, Dropped]], at_least: int) -> int:
    """Return how many of these make a segment, which ends with all branches of its last marker."""
    last = aborted[at_least - 1][1].marker
    return next((at for at in range(at_least, len(aborted)) if aborted[at][1].marker != last), len(aborted))
