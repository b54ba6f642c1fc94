"""Steps that append to many ledgers and apply a batch of records, all or nothing, where writers are serialized."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from txnframework.errors import LedgerNotFound, LedgerSealed, VersionMismatch
from txnframework.model import Appended, IndexEntry, IndexRange, JointAppend, JointAppended, Position
from txnframework_sql._options import LedgerOptions
from txnframework_sql.steps.appends import append
from txnframework_sql.steps.ledgers import LedgerRef, ends_of
from txnframework_sql.steps.records import scan_index_entries
from txnframework_sql.steps.shared_appends import GrowingEnd, Growth
from txnframework_sql.steps.shared_reads import Head, RecordId, heads_of, record_id
from txnframework_sql.steps.shared_writes import known_steps, refusal_of, write_all
from txnframework_sql.steps.statements import Steps

Answer = JointAppended | Exception
Refusal = LedgerNotFound | LedgerSealed | VersionMismatch


class JointCall(NamedTuple):
    """One call of ``append_jointly``."""

    request: JointAppend
    now_ms: int


def ledger_of(reference: object) -> LedgerRef:
    """Return the ledger of a reference; raise ValueError for that of another store."""
    if not isinstance(reference, LedgerRef):
        raise ValueError(f"{reference!r} is no reference of a ledger of this store")
    return reference


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
        batch = call.request.batch
        ids = {record_id(step.key) for step in known_steps(batch)}
        if not touched.isdisjoint(ids) or holds_one(call.request.vacant, indexed):
            answers += yield from _append_apart(group, options)
            group, touched, indexed = [], set(), []
        group.append(call)
        touched |= ids
        indexed += [entry for put in batch.puts for entry in put.indexes]
    answers += yield from _append_apart(group, options)
    return answers


def holds_one(ranges: Iterable[IndexRange], entries: Sequence[IndexEntry]) -> bool:
    """Return whether one of the entries is in one of the ranges."""
    return any(one.index == entry.index and one.start <= entry.key < one.stop for one in ranges for entry in entries)


def _append_apart(calls: Sequence[JointCall], options: LedgerOptions) -> Steps[list[Answer]]:
    """Perform calls that have no record in common; a ledger may be in several."""
    heads = yield from heads_of(record_id(step.key) for call in calls for step in known_steps(call.request.batch))
    ends = _Ends()
    yield from ends.look(call.request for call in calls)
    positions: list[tuple[tuple[Position, ...], ...] | Refusal] = []
    for call in calls:
        # Every condition of a call precedes its first change.
        refusal = (yield from _refusal(call.request, heads)) or ends.refusal(call.request)
        positions.append(refusal or (yield from ends.append(call, options)))
    yield from ends.growth.write()
    accepted = [
        call.request.batch for call, done in zip(calls, positions, strict=True) if not isinstance(done, Exception)
    ]
    written = iter((yield from write_all(accepted, heads)))
    return [done if isinstance(done, Exception) else JointAppended(done, next(written)) for done in positions]


def _refusal(request: JointAppend, heads: Mapping[RecordId, Head]) -> Steps[VersionMismatch | None]:
    """Return why the records refuse a request, or None."""
    for entries in request.vacant:
        for record in (yield from scan_index_entries(entries, 1)).records:
            return VersionMismatch(record.key, record.version)
    return refusal_of(request.batch, heads)


class _Ends:
    """The ends of ledgers, with what was decided to be added to them."""

    def __init__(self) -> None:
        self.growth = Growth()
        self._ends: dict[int, GrowingEnd] = {}

    def look(self, requests: Iterable[JointAppend]) -> Steps[None]:
        """Read the ends of the ledgers of requests."""
        ledgers = [ledger_of(one.ledger) for request in requests for one in request.appends]
        found = yield from ends_of(ledgers)
        for managed in ledgers:
            if managed.id in found:
                self._ends[managed.id] = GrowingEnd(managed, found[managed.id], {})

    def refusal(self, request: JointAppend) -> Refusal | None:
        """Return why a ledger refuses the request, or None."""
        for one in request.appends:
            managed = ledger_of(one.ledger)
            end = self._ends.get(managed.id)
            if end is None:
                return LedgerNotFound(managed.name)
            if end.tail.sealed:
                return LedgerSealed(managed.name)
        return None

    def append(self, call: JointCall, options: LedgerOptions) -> Steps[tuple[tuple[Position, ...], ...]]:
        """Append the entries of a call that no ledger refuses."""
        appended: dict[int, tuple[Appended, ...]] = {}
        apart = []
        for one in call.request.appends:
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
            yield from self.look([JointAppend(tuple(apart))])
        ids = [ledger_of(one.ledger).id for one in call.request.appends]
        return tuple(tuple(entry.position for entry in appended[managed_id]) for managed_id in ids)
