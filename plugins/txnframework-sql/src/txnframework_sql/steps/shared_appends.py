"""Steps that perform appends to any number of managed ledgers with few statements, where writers are serialized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from txnframework.errors import LedgerClosed, LedgerNotFound, LedgerSealed, VersionMismatch
from txnframework.model import (
    Append,
    Appended,
    Applied,
    Branch,
    Position,
    PutSequential,
    Step,
    Tail,
)
from txnframework_sql._options import LedgerOptions
from txnframework_sql.steps.appends import (
    Totals,
    add_rows,
    append,
    copy_row,
    entry_row,
    is_full,
    old_copies,
    through_after,
)
from txnframework_sql.steps.ledgers import LedgerEnd, LedgerRef, end_of, ends_of
from txnframework_sql.steps.record_writes import put_all_next, require_version
from txnframework_sql.steps.shared_reads import (
    NO_HEAD,
    ProducerId,
    has_records,
    heads_of,
    newest_copies,
    record_id,
)
from txnframework_sql.steps.statements import LedgerChange, Steps, changed


class LedgerCall(NamedTuple):
    """
    One call of ``append`` of a managed ledger, or a step with an intent.

    ``step``: with the same entries; ``ledger_id`` is None then.
    """

    managed: LedgerRef
    entries: tuple[Append, ...]
    ledger_id: int | None
    now_ms: int
    step: Step | None = None


Answer = tuple[Appended, ...] | Applied | Exception


def append_calls(calls: Sequence[LedgerCall], options: LedgerOptions) -> Steps[list[Answer]]:
    """
    Perform each call by itself, one after the other; return its result, or the error that refuses it.

    Most appends only add rows. Those are decided first, and one execution of each statement adds the rows of all of
    them. Others, such as one that may have an earlier copy or fills its ledger, are performed by ``append``, and so are
    all later ones to the same ledger. What was decided before is written first. Write operations are written last, all
    together.
    """
    if len(calls) == 1 and calls[0].step is None:
        return [(yield from append(*calls[0][:4], options))]
    growth = Growth()
    headers = yield from heads_of(record_id(call.step.checks[0].key) for call in calls if call.step is not None)
    found = yield from ends_of(call.managed for call in calls)
    newest = yield from newest_copies(
        (call.managed.id, entry.sequence.producer)
        for call in calls
        for entry in call.entries
        if call.managed.id in found and entry.sequence is not None
    )
    # None: the ledger is left to ``append``.
    ends: dict[int, GrowingEnd | None] = {}
    answers: list[Answer] = []
    intended = _Intended()
    for call in calls:
        managed = call.managed
        try:
            if call.step is not None:
                check = call.step.checks[0]
                require_version(check.key, check.expected, headers.get(record_id(check.key), NO_HEAD)[0])
            if managed.id not in found:
                raise LedgerNotFound(managed.name)
            if managed.id not in ends:
                ends[managed.id] = GrowingEnd(managed, found[managed.id], newest)
            end = ends[managed.id]
            tail, answer = None, None
            if end is not None:
                tail, answer = end.tail, end.decide(call, options, growth)
            if answer is None:
                yield from growth.write()
                ends[managed.id] = None
                tail = (yield from end_of(managed)).tail if tail is None and call.step is not None else tail
                answer = yield from append(*call[:4], options)
            if call.step is not None and tail is not None and isinstance(answer, tuple):
                intended.add(len(answers), call.step, tail, answer)
            answers.append(answer)
        except (LedgerNotFound, LedgerSealed, LedgerClosed, VersionMismatch) as error:
            # Each is raised before the first change of its call.
            answers.append(error)
    yield from growth.write()
    for at, whole in (yield from intended.write()):
        answers[at] = whole
    return answers


class _Intended:
    """The write operations of calls, by the number of the call."""

    def __init__(self) -> None:
        self._calls: list[tuple[int, tuple[Appended, ...]]] = []
        self._puts: list[PutSequential] = []

    def add(self, number: int, step: Step, tail: Tail, appended: tuple[Appended, ...]) -> None:
        """Add the operation of a call whose entries were appended after ``tail``."""
        assert step.intent is not None, "its call is a step with an intent"
        self._calls.append((number, appended))
        self._puts.append(step.intent.put_at(tail))

    def write(self) -> Steps[list[tuple[int, Applied]]]:
        """Write the operations; return the results of their calls."""
        records = yield from put_all_next(self._puts, has_records)
        return [
            (number, Applied((record,), (appended,)))
            for (number, appended), record in zip(self._calls, records, strict=True)
        ]


@dataclass(slots=True)
class Growth:
    """What the decided appends add; the ends by ledger id."""

    entries: list[dict[str, object]] = field(default_factory=list)
    copies: list[dict[str, object]] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    old: list[dict[str, object]] = field(default_factory=list)
    ends: dict[int, GrowingEnd] = field(default_factory=dict)

    def write(self) -> Steps[None]:
        """Write everything, and start empty."""
        if not self.ends:
            return
        totals = [end.totals.row(ledger_id) for ledger_id, end in self.ends.items()]
        yield from add_rows(self.entries, self.copies, totals, self.branches, self.old)
        for end in self.ends.values():
            yield from changed(LedgerChange(end.managed.id))
        for grown in (self.entries, self.copies, self.branches, self.old, self.ends):
            grown.clear()


class GrowingEnd:
    """The end of one ledger, with the appends that were decided since it was read."""

    def __init__(self, managed: LedgerRef, end: LedgerEnd, newest: dict[ProducerId, tuple[int, int]]) -> None:
        self.managed = managed
        self.totals = Totals.at(end, 0)
        self._end = end
        # The highest sequence of each producer, and the number of its sequences until then; of other ledgers, too.
        self._newest = newest

    @property
    def tail(self) -> Tail:
        """The tail after the appends that were decided."""
        entries, before = self.totals.entries, self._end.before
        last = Position(self._end.ledger_id, entries - 1) if entries else before
        return Tail(last, self._end.ledger_id, self._end.is_sealed)

    def decide(
        self, call: LedgerCall, options: LedgerOptions, growth: Growth
    ) -> tuple[Appended, ...] | LedgerSealed | LedgerClosed | None:
        """Add a call to ``growth``, or return why it is refused; None: only ``append`` can perform it."""
        ledger_id = self._end.ledger_id
        if self._end.is_sealed:
            return LedgerSealed(self.managed.name)
        if call.ledger_id is not None and call.ledger_id != ledger_id:
            return LedgerClosed(self.managed.name, call.ledger_id)
        if not call.entries:
            return ()
        return self.grow(call.entries, call.now_ms, growth, options) if self.takes(call.entries, options) else None

    def takes(self, entries: Sequence[Append], options: LedgerOptions) -> bool:
        """Return whether ``grow`` may add entries; otherwise only ``append`` can."""
        newest: dict[str, tuple[int, int]] = {}
        for entry in entries:
            sequence = entry.sequence
            if sequence is None:
                continue
            last, through = newest.get(sequence.producer) or self._newest[self.managed.id, sequence.producer]
            if last >= sequence.first:
                return False
            newest[sequence.producer] = (sequence.last, through_after(through, sequence))
        size = sum(len(entry.data) for entry in entries)
        return not is_full(self.totals.entries + len(entries), self.totals.bytes + size, options)

    def grow(
        self, entries: Sequence[Append], now_ms: int, growth: Growth, options: LedgerOptions
    ) -> tuple[Appended, ...]:
        """Add entries that ``takes`` has accepted to ``growth``."""
        growth.ends[self._end.ledger_id] = self
        totals, appended = self.totals, []
        totals.appended_ms = max(totals.appended_ms, now_ms)
        for entry in entries:
            position = Position(self._end.ledger_id, totals.entries)
            totals.add(entry)
            growth.entries.append(entry_row(position, totals, entry))
            sequence = entry.sequence
            if sequence is not None:
                _, before = self._newest[self.managed.id, sequence.producer]
                through = through_after(before, sequence)
                self._newest[self.managed.id, sequence.producer] = (sequence.last, through)
                growth.copies.append(copy_row(self.managed, entry, position, through, totals.appended_ms))
                old = old_copies(self.managed, sequence, before, options.deduplication_window_sequences)
                if old is not None:
                    growth.old.append(old)
            if entry.branch is not None:
                growth.branches.append(entry.branch)
            appended.append(Appended(position))
        return tuple(appended)
