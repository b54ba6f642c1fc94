"""Which waiting appends to one managed ledger are sent together, as what, and what the answer means for each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from txnframework.model import Append, Appended, Branch, Position, ProducerSequence, TxnID
from txnframework_sql.postgresql._connection import Row


@dataclass(slots=True, eq=False)
class Waiting:
    """One call of ``append`` and what is known of its entries by now."""

    entries: tuple[Append, ...]
    ledger_id: int | None
    now_ms: int
    future: asyncio.Future[tuple[Appended, ...]]
    found: dict[int, Appended] = field(default_factory=dict)
    """Where entries stand, by their number in the call; they are not sent again."""

    @property
    def size(self) -> int:
        """How many bytes of data it holds."""
        return sum(len(entry.data) for entry in self.entries)

    def answer(self, appended: tuple[Appended, ...]) -> None:
        """Tell the caller, unless it was cancelled meanwhile."""
        if not self.future.done():
            self.future.set_result(appended)

    def answer_if_whole(self) -> None:
        """Tell the caller, once it is known of each entry where it stands."""
        if len(self.found) == len(self.entries):
            self.answer(tuple(self.found[number] for number in range(len(self.entries))))


@dataclass(slots=True)
class _Producer:
    """What one producer sends in a group; in ascending order."""

    place: int
    lowest: int
    added: int = 0


class AppendGroup:
    """Calls that are sent as one, their entries as columns; see ``functions/append_entries.sql``."""

    def __init__(self, calls: Sequence[Waiting]) -> None:
        self.calls = tuple(calls)
        self.ledger_id = next((call.ledger_id for call in calls if call.ledger_id is not None), None)
        self.now_ms = max(call.now_ms for call in calls)
        self._entries: list[tuple[Waiting, int]] = []
        self._ends: list[tuple[int, int]] = []
        self.datas: list[bytes] = []
        self._messages_through: list[int] = []
        self._bytes = self._messages = 0
        self._producers: dict[str, _Producer] = {}
        self._sequences: list[tuple[int, int, int, int, str | None, int | None, int]] = []
        self._numbers: list[tuple[int, int, str]] = []
        for call in calls:
            self._add(call)

    def columns(self) -> tuple[list[Any], ...]:
        """Return what stands for each call, entry, entry with a sequence, producer, and transaction number."""
        producers = self._producers.values()
        return (
            *_turned(self._ends, 2),
            self.datas,
            self._messages_through,
            *_turned(self._sequences, 7),
            list(self._producers),
            [producer.lowest for producer in producers],
            [producer.added for producer in producers],
            *_turned(self._numbers, 3),
        )

    def appended(self, answer: Row) -> None:
        """Note where the first entries stand: those up to the end of the call that filled the ledger, mostly all."""
        ledger_id, entry_id = answer["ledger_id"], answer["entry_id"]
        for number, (call, entry) in enumerate(self._entries[: answer["entries"]]):
            call.found[entry] = Appended(Position(ledger_id, entry_id + number))
        for call in self.calls:
            call.answer_if_whole()

    def found(self, answer: Sequence[Row]) -> list[Waiting]:
        """Note which entries stand there already; return the calls that may replace such a copy."""
        replacing: dict[Waiting, None] = {}
        for row in answer:
            call, number = self._entries[row["at_entry"] - 1]
            entry = call.entries[number]
            assert entry.sequence is not None
            copy = _earlier_copy(row, entry.sequence.producer)
            if entry.replaces is not None and entry.replaces.entry == copy.position:
                replacing[call] = None
            else:
                call.found[number] = copy
        for call in self.calls:
            call.answer_if_whole()
        return list(replacing)

    def _add(self, call: Waiting) -> None:
        highest: dict[int, int] = {}
        for number, entry in enumerate(call.entries):
            if number in call.found:
                continue
            self._entries.append((call, number))
            self._bytes += len(entry.data)
            self._messages += entry.messages
            self.datas.append(entry.data)
            self._messages_through.append(self._messages)
            if entry.branch is not None:
                txn_id = entry.branch.txn_id
                highest[txn_id.coordinator] = max(txn_id.number, highest.get(txn_id.coordinator, 0))
            if entry.sequence is not None:
                self._add_sequence(entry.sequence, entry.branch)
        self._ends.append((len(self._entries), self._bytes))
        for coordinator, txn_number in highest.items():
            self._numbers.append((len(self._entries), coordinator, f"{txn_number:028x}"))

    def _add_sequence(self, sequence: ProducerSequence, branch: Branch | None) -> None:
        producer = self._producers.get(sequence.producer)
        if producer is None:
            producer = _Producer(len(self._producers) + 1, sequence.first)
            self._producers[sequence.producer] = producer
        producer.added += sequence.last - sequence.first + 1
        txn, number = (None, None) if branch is None else (str(branch.txn_id), branch.number)
        self._sequences.append(
            (len(self._entries), producer.place, sequence.first, sequence.last, txn, number, producer.added)
        )


def take_group(waiting: Iterable[Waiting], calls_max: int, bytes_max: int) -> int:
    """
    Return how many calls from the front go together; 0: the first is one that can only be decided entry by entry.

    Together they name one ledger at most, and no sequence of a producer comes after a higher one of it: so nothing that
    is sent overlaps anything else that is.
    """
    highest: dict[str, int] = {}
    ledger_id: int | None = None
    size = taken = 0
    for call in islice(waiting, calls_max):
        if call.ledger_id is not None and ledger_id not in (None, call.ledger_id):
            break
        size += call.size
        if (taken and size > bytes_max) or not call.entries or not _ascend(call.entries, highest):
            break
        ledger_id = ledger_id if call.ledger_id is None else call.ledger_id
        taken += 1
    return taken


def _ascend(entries: Iterable[Append], highest: dict[str, int]) -> bool:
    """Whether sequences ascend from the highest one of each producer until now; ``highest`` is brought forward."""
    for entry in entries:
        sequence = entry.sequence
        if sequence is not None:
            if not highest.get(sequence.producer, sequence.first - 1) < sequence.first <= sequence.last:
                return False
            highest[sequence.producer] = sequence.last
    return True


def _earlier_copy(row: Row, producer: str) -> Appended:
    txn = row["copy_txn"]
    branch = None if txn is None else Branch(TxnID.parse(txn), row["copy_branch"])
    sequence = ProducerSequence(producer, row["copy_first"], row["copy_last"])
    return Appended(Position(row["ledger_id"], row["entry_id"]), True, branch, sequence)


def _turned(rows: Sequence[tuple[Any, ...]], width: int) -> tuple[list[Any], ...]:
    """Return the columns of rows."""
    return tuple(list(column) for column in zip(*rows, strict=True)) if rows else tuple([] for _ in range(width))
