"""Reads whole managed ledgers, and takes those of another store over; see ICopyableLedgerStore."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import groupby

from txnframework.errors import InvalidInput
from txnframework.model import (
    EntryRange,
    LedgerShape,
    Limit,
    Position,
    ProducerSequence,
    RememberedSequence,
    StoredEntry,
)
from txnframework_nats.ledgers._log import Change
from txnframework_nats.ledgers._open_logs import OpenLog, OpenLogs, new_token
from txnframework_nats.ledgers._records import (
    Added,
    Imported,
    ImportedLedger,
    Numbering,
    Remembered,
    RememberedCopy,
    encode,
)
from txnframework_nats.ledgers._state import LedgerState

Find = Callable[[str], Awaitable[OpenLog]]
"""Returns the open log of a name."""


class LedgerCopies:
    """
    What a copy reads and writes in one managed ledger after the other.

    A log is open as long as something holds it. So the last one is kept here: otherwise each page would load it again.
    ``message_bytes``: the largest data of one message.
    """

    def __init__(self, logs: OpenLogs, find: Find, message_bytes: int) -> None:
        self._logs = logs
        self._message_bytes = message_bytes
        self._find = find
        self._last: OpenLog | None = None

    async def shape(self, name: str) -> LedgerShape:
        """Return what a managed ledger is apart from its entries and its window."""
        state = (await self._opened(name)).log.state
        return LedgerShape(tuple(one.summary() for one in state.ledgers), state.sealed, state.trimmed)

    async def entries(self, name: str, entries: EntryRange, limit: Limit) -> tuple[StoredEntry, ...]:
        """Return the first entries of a range with everything that is stored of them."""
        return await (await self._opened(name)).reader.stored(entries, limit)

    async def sequences(
        self, name: str, after: RememberedSequence | None, items_max: int
    ) -> tuple[RememberedSequence, ...]:
        """Return the first copies in the windows behind ``after``."""
        return remembered_after((await self._opened(name)).log.state, after, items_max)

    async def imported(self, name: str) -> Position:
        """Return the last entry that was imported."""
        return (await self._opened(name)).log.state.imported

    async def import_entries(self, name: str, entries: tuple[StoredEntry, ...]) -> None:
        """Add entries, with one record for those of each ledger."""
        opened = await self._opened(name)
        require_following(opened.log.state, entries)
        for some in by_ledger(entries):
            await self._logs.finish(opened.log.change(partial(_addition, some), 1))
            # Crash window: the entries of the following ledgers are not added; the position of the last one is found.
        self._logs.keep_house(opened)

    async def import_sequences(self, name: str, sequences: tuple[RememberedSequence, ...]) -> None:
        """Add copies to the windows, but for those that are there; with one record if it fits into a message."""
        opened = await self._opened(name)
        for content in remembered_records(sequences, new_token, self._message_bytes):
            await self._logs.finish(opened.log.change(partial(_unchanged, content), 1))
            # Crash window: the copies of the following records are not added; all of them are imported again.
        self._logs.keep_house(opened)

    async def _opened(self, name: str) -> OpenLog:
        opened = self._last
        if opened is not None and opened.log.name == name:
            await opened.log.refresh()
            if not opened.log.state.deleted:
                return opened
        self._last = opened = await self._find(name)
        return opened


def import_record(name: str, shape: LedgerShape, numbering: Numbering, token: bytes) -> Imported:
    """Return the first record of the log of an imported ledger."""
    ledgers: list[ImportedLedger] = []
    for one in shape.ledgers:
        # The time of a row never decreases, and that of an empty ledger has no meaning.
        appended_ms = max(one.appended_ms, ledgers[-1].appended_ms if ledgers else 0)
        ledgers.append(ImportedLedger(one.ledger_id, one.entries, appended_ms))
    trimmed = None
    if shape.trimmed is not None:
        first, last = shape.trimmed
        trimmed = (first.ledger_id, first.entry_id, last.ledger_id, last.entry_id)
    return Imported(token, name, numbering, tuple(ledgers), shape.sealed, trimmed)


def by_ledger(entries: Sequence[StoredEntry]) -> Iterator[tuple[StoredEntry, ...]]:
    """Yield the entries of each ledger."""
    for _, some in groupby(entries, key=lambda entry: entry.position.ledger_id):
        yield tuple(some)


def require_following(state: LedgerState, entries: Sequence[StoredEntry]) -> None:
    """
    Check that entries follow the last one that was imported, and each other.

    :raises InvalidInput: they do not.
    """
    state.require_present()
    due = [one for one in state.ledgers if one.entries < one.due]
    following = (Position(one.ledger_id, entry) for one in due for entry in range(one.entries, one.due))
    for entry in entries:
        if entry.position != next(following, None):
            raise InvalidInput(f"entry {entry.position} of {state.name} does not follow {state.imported}")


def _addition(entries: Sequence[StoredEntry], state: LedgerState) -> Change[None]:
    require_following(state, entries)
    ledger_id = entries[0].position.ledger_id
    ledger = next(one for one in state.ledgers if one.ledger_id == ledger_id)
    messages, times = [one.messages for one in entries], [one.appended_ms for one in entries]
    added = Added(
        new_token(),
        ledger.entries,
        ledger.messages,
        times[0],
        tuple(len(one.data) for one in entries),
        () if set(messages) == {1} else tuple(messages),
        into=ledger_id,
        times=() if len(set(times)) == 1 else tuple(times),
    )
    return Change(None, added, tuple(bytes(one.data) for one in entries))


def _unchanged(content: Remembered, state: LedgerState) -> Change[None]:
    state.require_present()
    return Change(None, content)


def remembered_records(
    sequences: Sequence[RememberedSequence], new_token: Callable[[], bytes], bytes_max: int
) -> Iterator[Remembered]:
    """Yield the records that add copies to the windows of producers: as few as fit into messages of this size."""
    content = _remembered(sequences, new_token())
    if len(sequences) < 2 or len(encode(content)) <= bytes_max:
        yield content
        return
    half = len(sequences) // 2
    for some in (sequences[:half], sequences[half:]):
        yield from remembered_records(some, new_token, bytes_max)


def _remembered(sequences: Sequence[RememberedSequence], token: bytes) -> Remembered:
    producers: dict[str, int] = {}
    copies = []
    for one in sequences:
        txn, branch = ("", 0) if one.branch is None else (str(one.branch.txn_id), one.branch.number)
        producer = producers.setdefault(one.sequence.producer, len(producers))
        place = (one.position.ledger_id, one.position.entry_id)
        copies.append(
            RememberedCopy(producer, one.sequence.first, one.sequence.last, *place, txn, branch, one.appended_ms)
        )
    return Remembered(token, tuple(producers), tuple(copies))


def remembered_after(
    state: LedgerState, after: RememberedSequence | None, items_max: int
) -> tuple[RememberedSequence, ...]:
    """Return the first copies in the windows behind ``after``; the time is that of the producer's last append."""
    state.require_present()
    start = ("", -1) if after is None else (after.sequence.producer, after.sequence.last)
    found: list[RememberedSequence] = []
    for producer, window in sorted(state.windows.items()):
        if producer < start[0]:
            continue
        for copy in window.copies:
            if (producer, copy.last) <= start:
                continue
            if len(found) == items_max:
                return tuple(found)
            sequence = ProducerSequence(producer, copy.first, copy.last)
            found.append(RememberedSequence(sequence, copy.position, copy.branch, window.appended_ms))
    return tuple(found)
