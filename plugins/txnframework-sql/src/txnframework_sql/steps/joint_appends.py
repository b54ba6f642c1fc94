"""Statements for steps that append to many ledgers and write records, where writers are serialized."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from txnframework.errors import LedgerNotFound, LedgerSealed, VersionMismatch
from txnframework.model import Appended, Applied, IndexEntry, IndexRange, Put, Step
from txnframework_sql._options import LedgerOptions
from txnframework_sql.steps.appends import append
from txnframework_sql.steps.ledgers import LedgerRef, ends_of
from txnframework_sql.steps.records import scan_index_entries
from txnframework_sql.steps.shared_appends import GrowingEnd, Growth
from txnframework_sql.steps.shared_reads import Head, RecordId, heads_of, record_id
from txnframework_sql.steps.shared_writes import refusal_of, write_all
from txnframework_sql.steps.statements import Steps

Answer = Applied | Exception
Refusal = LedgerNotFound | LedgerSealed | VersionMismatch


@dataclass(frozen=True, slots=True)
class LedgerReference:
    """Names a ledger in a step, with the operations of its store, which appends the entries."""

    managed: LedgerRef
    location: object = field(compare=False)
    """The database that has the ledger."""
    operations: Any = field(compare=False, repr=False)
    """See ``_database.Entries``."""


class JointCall(NamedTuple):
    """One step, without an intent."""

    step: Step
    now_ms: int


def require_located(step: Step, location: object) -> None:
    """Raise ValueError if an append of a step is to a ledger that is not in this database."""
    for one in step.appends:
        if not isinstance(one.ledger, LedgerReference) or one.ledger.location != location:
            raise ValueError(f"{one.ledger!r} is no reference of a ledger in the database of this store")


def ledger_of(reference: object) -> LedgerRef:
    """Return the ledger of a reference."""
    assert isinstance(reference, LedgerReference), "see require_located"
    return reference.managed


def operations_of(reference: object) -> Any:
    """Return the operations of the store of a ledger."""
    assert isinstance(reference, LedgerReference), "see require_located"
    return reference.operations


def deciding_put(step: Step) -> Put:
    """Return the put that decides a step with rows of an application."""
    put = step.puts[0]
    assert isinstance(put, Put), "see require_decided"
    return put


def append_all_jointly(calls: Sequence[JointCall], options: LedgerOptions) -> Steps[list[Answer]]:
    """
    Perform each call by itself, one after the other; return its result, or the error that refuses it.

    One look at all records and ledgers decides all of them, and one execution of each statement writes them. A call
    that follows another one at the same record, or at an index range that the other one writes to, is decided after
    that one is written.
    """
    answers: list[Answer] = []
    group: list[JointCall] = []
    touched: set[RecordId] = set()
    indexed: list[IndexEntry] = []
    for call in calls:
        ids = {record_id(part.key) for part in call.step.keyed()}
        if not touched.isdisjoint(ids) or holds_one(call.step.vacant, indexed):
            answers += yield from _append_apart(group, options)
            group, touched, indexed = [], set(), []
        group.append(call)
        touched |= ids
        indexed += [entry for put in call.step.puts for entry in put.indexes]
    answers += yield from _append_apart(group, options)
    return answers


def holds_one(ranges: Iterable[IndexRange], entries: Sequence[IndexEntry]) -> bool:
    """Return whether one of the entries is in one of the ranges."""
    return any(one.index == entry.index and one.start <= entry.key < one.stop for one in ranges for entry in entries)


def _append_apart(calls: Sequence[JointCall], options: LedgerOptions) -> Steps[list[Answer]]:
    """Perform calls that have no record in common; a ledger may be in several."""
    heads = yield from heads_of(record_id(part.key) for call in calls for part in call.step.keyed())
    ends = _Ends()
    yield from ends.look(call.step for call in calls)
    appended: list[tuple[tuple[Appended, ...], ...] | Refusal] = []
    for call in calls:
        # Every condition of a call precedes its first change.
        refusal = (yield from _refusal(call.step, heads)) or ends.refusal(call.step)
        appended.append(refusal or (yield from ends.append(call, options)))
    yield from ends.growth.write()
    accepted = [call.step for call, done in zip(calls, appended, strict=True) if not isinstance(done, Exception)]
    written = iter((yield from write_all(accepted, heads)))
    return [done if isinstance(done, Exception) else Applied(next(written), done) for done in appended]


def _refusal(step: Step, heads: Mapping[RecordId, Head]) -> Steps[VersionMismatch | None]:
    """Return why the records refuse a step, or None."""
    for entries in step.vacant:
        for record in (yield from scan_index_entries(entries, 1)).records:
            return VersionMismatch(record.key, record.version)
    return refusal_of(step, heads)


class _Ends:
    """The ends of ledgers, with what was decided to be added to them."""

    def __init__(self) -> None:
        self.growth = Growth()
        self._ends: dict[int, GrowingEnd] = {}

    def look(self, steps: Iterable[Step]) -> Steps[None]:
        """Read the ends of the ledgers of steps."""
        ledgers = [ledger_of(one.ledger) for step in steps for one in step.appends]
        found = yield from ends_of(ledgers)
        for managed in ledgers:
            if managed.id in found:
                self._ends[managed.id] = GrowingEnd(managed, found[managed.id], {})

    def refusal(self, step: Step) -> Refusal | None:
        """Return why a ledger refuses the step, or None."""
        for one in step.appends:
            managed = ledger_of(one.ledger)
            end = self._ends.get(managed.id)
            if end is None:
                return LedgerNotFound(managed.name)
            if end.tail.sealed:
                return LedgerSealed(managed.name)
        return None

    def append(self, call: JointCall, options: LedgerOptions) -> Steps[tuple[tuple[Appended, ...], ...]]:
        """Append the entries of a call that no ledger refuses."""
        appended: dict[int, tuple[Appended, ...]] = {}
        apart = []
        for one in call.step.appends:
            managed = ledger_of(one.ledger)
            end = self._ends[managed.id]
            if end.takes(one.entries, options):
                appended[managed.id] = end.grow(one.entries, call.now_ms, self.growth, options)
            else:
                apart.append(one)
        if apart:
            # Such as one that fills its ledger: it changes more than it adds.
            yield from self.growth.write()
            for one in apart:
                managed = ledger_of(one.ledger)
                appended[managed.id] = yield from append(managed, one.entries, None, call.now_ms, options)
            yield from self.look([Step(appends=tuple(apart))])
        return tuple([appended[ledger_of(one.ledger).id] for one in call.step.appends])
