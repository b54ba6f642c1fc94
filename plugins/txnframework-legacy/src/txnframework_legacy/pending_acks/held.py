"""What the records of a log mean: pure, and the same in every process that reads them in order."""

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
    """What one call acknowledged, and the entry that says so, or said so before it was trimmed."""

    record: Acked
    entry: Position

    @cached_property
    def branch(self) -> Branch:
        """The branch that acknowledged."""
        return Branch(TxnID.parse(self.record.txn), self.record.branch)

    @cached_property
    def acks(self) -> tuple[Ack, ...]:
        """What it acknowledged."""
        return tuple(ack_of(document) for document in self.record.acks)

    @cached_property
    def index(self) -> AckIndex:
        """The same, to be looked up."""
        return AckIndex(self.acks)

    @property
    def incarnation(self) -> int:
        """Of which incarnation of the cursor the messages were."""
        return self.record.incarnation

    @property
    def processed(self) -> ProcessedRange | None:
        """What a batch consumed with it."""
        return processed_of(self.record.processed)

    def overlaps(self, acks: Iterable[Ack]) -> bool:
        """Return whether another transaction cannot hold these beside it."""
        return any(overlap(ack, held) for ack in acks for held in self.index.near(ack))


class Held:
    """What transactions hold of one subscription, up to some place in its log."""

    def __init__(self) -> None:
        self._by_txn: dict[TxnID, list[Hold]] = {}
        self._by_incarnation: dict[int, _ByEntry] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_txn.values()))

    def transactions(self) -> tuple[TxnID, ...]:
        """Return those that hold something."""
        return tuple(sorted(self._by_txn))

    def of(self, txn_id: TxnID) -> tuple[Hold, ...]:
        """Return what a transaction holds."""
        return tuple(self._by_txn.get(txn_id, ()))

    def near(self, acks: Sequence[Ack], txn_id: TxnID, incarnation: int) -> Iterator[Hold]:
        """Return what other transactions hold, of an incarnation of the cursor, that may overlap with ``acks``."""
        holds = self._by_incarnation.get(incarnation)
        for hold in () if holds is None else holds.near(acks):
            if hold.branch.txn_id != txn_id:
                yield hold

    def has(self, txn_id: TxnID, token: int) -> bool:
        """Return whether what a call acknowledged is held."""
        return any(hold.record.token == token for hold in self._by_txn.get(txn_id, ()))

    def base(self, ledger_id: int) -> Base:
        """Return the record of what is held here, for the ledger that begins here."""
        holds = (hold for holds in self._by_txn.values() for hold in holds)
        held = [HeldDocument(entry=str(hold.entry), acked=hold.record) for hold in holds]
        return Base(ledger=ledger_id, held=held)

    def apply(self, record: AnyRecord, entry: Position) -> None:
        """Go on by one record."""
        match record:
            case Acked():
                self._hold(Hold(record, entry))
            case Withdrawn(txn=txn, token=token):
                self._keep(TxnID.parse(txn), lambda hold: hold.record.token != token)
            case Settled(txn=txn, upto=upto):
                last = Position.parse(upto)
                self._keep(TxnID.parse(txn), lambda hold: hold.entry > last)
            case Base():
                pass  # for those who begin at its ledger: what it says is known to whoever read what stands before

    def begin(self, base: Base) -> None:
        """Begin with what was held where a ledger begins."""
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
    """What is held of one incarnation, found by entry: looking one up costs the same, however much is held."""

    def __init__(self) -> None:
        self._all: dict[int, Hold] = {}
        self._cumulative: dict[int, Hold] = {}
        self._by_entry: dict[Position, dict[int, Hold]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def near(self, acks: Sequence[Ack]) -> Iterator[Hold]:
        """Return what may overlap with ``acks``, some of it more than once."""
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
