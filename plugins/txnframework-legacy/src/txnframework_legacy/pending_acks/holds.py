"""
The holds that follow from a log's records.

There is no I/O, and every process that reads the records in order gets the same holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from txnframework.model import Ack, Branch, Position, ProcessedRange, TxnID
from txnframework.model.ack_overlap import AckIndex, overlap
from txnframework_legacy.pending_acks.records import (
    Acked,
    AnyRecord,
    Base,
    HeldDocument,
    Settled,
    Withdrawn,
    ack_of,
    processed_of,
)


@dataclass(frozen=True)
class Hold:
    """The acknowledgments of one call, and the entry that stored them; that entry may be trimmed by now."""

    record: Acked
    entry: Position

    @cached_property
    def branch(self) -> Branch:
        """The branch that acknowledged."""
        return Branch(TxnID.parse(self.record.txn), self.record.branch)

    @cached_property
    def acks(self) -> tuple[Ack, ...]:
        """The acknowledgments."""
        return tuple(ack_of(document) for document in self.record.acks)

    @cached_property
    def index(self) -> AckIndex:
        """The acknowledgments, indexed for lookup."""
        return AckIndex(self.acks)

    @property
    def incarnation(self) -> int:
        """The incarnation of the cursor to which the messages belong."""
        return self.record.incarnation

    @property
    def processed(self) -> ProcessedRange | None:
        """The range that a batch processed with these acknowledgments."""
        return processed_of(self.record.processed)

    def overlaps(self, acks: Iterable[Ack]) -> bool:
        """Return whether these acknowledgments of another transaction would conflict with this hold."""
        return any(overlap(ack, held) for ack in acks for held in self.index.near(ack))


class HeldAcks:
    """The acknowledgments that transactions hold on one subscription, up to a position in its log."""

    def __init__(self) -> None:
        self._by_txn: dict[TxnID, list[Hold]] = {}
        self._by_incarnation: dict[int, _ByEntry] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_txn.values()))

    def transactions(self) -> tuple[TxnID, ...]:
        """Return the transactions that hold acknowledgments."""
        return tuple(sorted(self._by_txn))

    def of(self, txn_id: TxnID) -> tuple[Hold, ...]:
        """Return the holds of a transaction."""
        return tuple(self._by_txn.get(txn_id, ()))

    def near(self, acks: Sequence[Ack], txn_id: TxnID, incarnation: int) -> Iterator[Hold]:
        """Yield the holds of other transactions, in an incarnation of the cursor, that may overlap with ``acks``."""
        holds = self._by_incarnation.get(incarnation)
        for hold in () if holds is None else holds.near(acks):
            if hold.branch.txn_id != txn_id:
                yield hold

    def has(self, txn_id: TxnID, token: int) -> bool:
        """Return whether the acknowledgments of a call are held."""
        return any(hold.record.token == token for hold in self._by_txn.get(txn_id, ()))

    def base(self, ledger_id: int) -> Base:
        """Return the base record of all current holds, for the ledger that begins at this point."""
        holds = (hold for holds in self._by_txn.values() for hold in holds)
        held = [HeldDocument(entry=str(hold.entry), acked=hold.record) for hold in holds]
        return Base(ledger=ledger_id, held=held)

    def apply(self, record: AnyRecord, entry: Position) -> None:
        """Apply the next record."""
        match record:
            case Acked():
                self._hold(Hold(record, entry))
            case Withdrawn(txn=txn, token=token):
                self._keep(TxnID.parse(txn), lambda hold: hold.record.token != token)
            case Settled(txn=txn, upto=upto):
                last = Position.parse(upto)
                self._keep(TxnID.parse(txn), lambda hold: hold.entry > last)
            case Base():
                pass  # for readers that start at its ledger; other readers have already read its contents

    def begin(self, base: Base) -> None:
        """Start with the holds of a ledger's base."""
        for document in base.held:
            self._add(Hold(document.acked, Position.parse(document.entry)))

    def _hold(self, hold: Hold) -> None:
        if any(other.overlaps(hold.acks) for other in self.near(hold.acks, hold.branch.txn_id, hold.incarnation)):
            return  # another transaction was first
        self._add(hold)

    def _add(self, hold: Hold) -> None:
        self._by_txn.setdefault(hold.branch.txn_id, []).append(hold)
        self._by_incarnation.setdefault(hold.incarnation, _ByEntry()).add(hold)

    def _keep(self, txn_id: TxnID, wanted: Callable[[Hold], bool]) -> None:
        kept: list[Hold] = []
        for hold in self._by_txn.pop(txn_id, ()):
            if wanted(hold):
                kept.append(hold)
            else:
                self._discard(hold)
        if kept:
            self._by_txn[txn_id] = kept

    def _discard(self, hold: Hold) -> None:
        of_incarnation = self._by_incarnation[hold.incarnation]
        of_incarnation.discard(hold)
        if not of_incarnation:
            del self._by_incarnation[hold.incarnation]


class _ByEntry:
    """The holds of one incarnation, indexed by entry: the cost of a lookup does not depend on their number."""

    def __init__(self) -> None:
        self._all: dict[int, Hold] = {}
        self._cumulative: dict[int, Hold] = {}
        self._by_entry: dict[Position, dict[int, Hold]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def near(self, acks: Sequence[Ack]) -> Iterator[Hold]:
        """Yield the holds that may overlap with ``acks``, some of them more than once."""
        if any(ack.cumulative for ack in acks):
            yield from self._all.values()
            return
        yield from self._cumulative.values()
        for ack in acks:
            yield from self._by_entry.get(ack.position.entry, {}).values()

    def add(self, hold: Hold) -> None:
        key = id(hold)
        self._all[key] = hold
        for ack in hold.acks:
            if ack.cumulative:
                self._cumulative[key] = hold
            else:
                self._by_entry.setdefault(ack.position.entry, {})[key] = hold

    def discard(self, hold: Hold) -> None:
        key = id(hold)
        del self._all[key]
        self._cumulative.pop(key, None)
        for entry in {ack.position.entry for ack in hold.acks if not ack.cumulative}:
            self._by_entry[entry].pop(key)
            if not self._by_entry[entry]:
                del self._by_entry[entry]
