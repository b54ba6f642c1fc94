"""The suites detect faults: each backend here breaks one rule on purpose, and the test of that rule fails."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from txnframework.errors import OutcomeUnknown, Unavailable
from txnframework.interfaces import ILedgerStore, IMetadataStore
from txnframework.model import (
    Append,
    Appended,
    Applied,
    Delete,
    EntryRange,
    Expected,
    IndexEntry,
    IndexRange,
    Key,
    KeyRange,
    LedgerEntry,
    Position,
    Put,
    PutSequential,
    Record,
    Step,
)
from txnframework.model.paths import lease_key
from txnframework.testing import LedgerStoreSuite, MetadataStoreSuite, VirtualEnvironment
from txnframework.testing._suites._base import Suite, run_test
from txnframework_memory import MemoryMetadataStore, MemorySpace, yield_once
from txnframework_memory._ledgers import Copy, LedgerCollection, StoredLedger, Window
from txnframework_memory._records import Change, RecordID, Records, record_id
from txnframework_memory.testing import MemoryLedgerHarness, MemoryMetadataHarness

Test = Callable[[Any], Any]

# -- metadata stores that break a rule ----------------------------------------------------------------


class IgnoresVersions(Records):
    """Writes without comparing the expected version."""

    def _check(self, key: Key, expected: Expected) -> None:
        pass


class KeepsOldIndexEntries(Records):
    """Adds the new index entries of a record and leaves the old ones until it is deleted."""

    def _reindex(
        self, place: RecordID, before: frozenset[IndexEntry], after: frozenset[IndexEntry]
    ) -> frozenset[IndexEntry]:
        return super()._reindex(place, frozenset() if after else before, after)


class LagsOnDelete(Records):
    """Removes the index entries of a deleted record with the next write only."""

    def __init__(self) -> None:
        super().__init__()
        self._late: list[Key] = []

    def apply(self, step: Step, versions: Sequence[int] | None = None) -> tuple[Record, ...]:
        late, self._late = self._late, [delete.key for delete in step.deletes]
        changes: list[Change] = []
        for key in late:
            self._remove(record_id(key), changes)
        written = super().apply(replace(step, deletes=()), versions)
        self.watches.notify(Change(*record_id(key), frozenset()) for key in self._late)
        return written

    def get(self, key: Key) -> Record | None:
        return None if key in self._late else super().get(key)


class CutsLongKeys(Records):
    """Loses the last character of a path that is longer than 1,000."""

    def apply(self, step: Step, versions: Sequence[int] | None = None) -> tuple[Record, ...]:
        cut = tuple(replace(put, key=_cut(put.key)) if isinstance(put, Put) else put for put in step.puts)
        return super().apply(replace(step, puts=cut), versions)

    def get(self, key: Key) -> Record | None:
        return super().get(_cut(key))


def _cut(key: Key) -> Key:
    return replace(key, path=key.path[:-1]) if len(key.path) > 1_000 else key


class ReusesNumbers(Records):
    """Gives the number after the highest remaining one."""

    def _next_key(self, prefix: Key) -> Key:
        path, partition = record_id(prefix)
        taken = [one for one, _ in self._places if one.startswith(f"{path}/")]
        number = int(taken[-1].rpartition("/")[2]) + 1 if taken else 0
        return Key(f"{path}/{number:020d}", partition)


class HoldsItsStop(Records):
    """Includes the stop of a range."""

    def scan(self, keys: KeyRange, items_max: int) -> Any:
        return super().scan(KeyRange(keys.start, keys.stop + "\x00", keys.partition), items_max)


class StopsPagingAtEqualKeys(Records):
    """Resumes an index scan after the last key, not after the last record."""

    def scan_index(self, entries: Any, items_max: int) -> Any:
        page = super().scan_index(entries, items_max)
        if not isinstance(page.resume, IndexRange):
            return page
        return replace(page, resume=replace(page.resume, start=page.resume.start + b"\x00", after=None))


class ChecksTooEarly(MemoryMetadataStore):
    """Checks the conditions of a step before the step, and writes later."""

    async def apply(self, step: Step, *transaction: Any) -> Applied:
        await super().apply(Step(checks=step.checks))
        await yield_once()
        return await super().apply(replace(step, checks=()), *transaction)


class MakesPartByPart(MemoryMetadataStore):
    """Applies the puts of a step one by one."""

    async def apply(self, step: Step, *_: Any) -> Applied:
        await super().apply(Step(checks=step.checks))
        written: list[Record] = []
        for put in step.puts:
            written += (await super().apply(Step(puts=(put,)))).records
        await super().apply(Step(deletes=step.deletes))
        return Applied(tuple(written))


class MakesAnyStep(MemoryMetadataStore):
    """Accepts every step without checking its parts."""

    async def apply(self, step: Step, *_: Any) -> Applied:
        return await self._write(step)


class AppliesByPartition(MemoryMetadataStore):
    """Applies a step partition by partition."""

    async def apply(self, step: Step, *_: Any) -> Applied:
        written: list[Record] = []
        for partition in sorted({one.partition for one in (*_keys_of(step),)}):
            parts = [
                tuple(one for one in some if _key_of(one).partition == partition)
                for some in (step.checks, step.puts, step.deletes)
            ]
            written += (await super().apply(Step(*parts))).records
        return Applied(tuple(written))


def _keys_of(step: Step) -> list[Key]:
    return [_key_of(part) for part in (*step.checks, *step.puts, *step.deletes)]


def _key_of(part: Any) -> Key:
    key: Key = part.prefix if isinstance(part, PutSequential) else part.key
    return key


class ReadsItsOwnPast(MemoryMetadataStore):
    """Caches every record that it has read."""

    async def get(self, key: Key) -> Record | None:
        seen: dict[Key, Record | None] = self.__dict__.setdefault("seen", {})
        if key not in seen:
            seen[key] = await super().get(key)
        return seen[key]


class CallsEveryFailureUnavailable(MemoryMetadataStore):
    """Raises Unavailable although the outcome is unknown."""

    async def put(self, write: Put) -> int:
        return (await self.apply(Step(puts=(write,)))).records[0].version

    async def delete(self, key: Key, expected: Expected) -> None:
        await self.apply(Step(deletes=(Delete(key, expected),)))

    async def apply(self, step: Step, *transaction: Any) -> Applied:
        try:
            return await super().apply(step, *transaction)
        except OutcomeUnknown as error:
            raise Unavailable("the connection was lost") from error


class ArmsLate(MemoryMetadataStore):
    """Returns a watch that is armed only by the first wait."""

    async def watch(self, target: Any) -> Any:
        watch: Any = await super().watch(target)
        concerns, waited = watch.concerns, watch.changed
        watch.concerns = lambda change: False

        async def changed() -> None:
            watch.concerns = concerns
            await waited()

        watch.changed = changed
        return watch


class SleepsThroughALostConnection(MemoryMetadataStore):
    """Wakes no watch after a reconnection."""

    def restore(self) -> None:
        self.link.restore()


class WakesForEver(MemoryMetadataStore):
    """Returns a watch that never waits again after its first wake-up."""

    async def watch(self, target: Any) -> Any:
        watch: Any = await super().watch(target)
        waited = watch.changed

        async def changed() -> None:
            await waited()
            watch.wake()

        watch.changed = changed
        return watch


class GivesEveryVersionOne(Records):
    """Gives every version the number one."""

    def _put(self, put: Any, changes: list[Change], version: int) -> Record:
        record = super()._put(put, changes, version)
        place = record_id(record.key)
        self._stored[place] = dataclasses.replace(self._stored[place], record=replace(record, version=1))
        return self._stored[place].record


class ScansBackwards(Records):
    """Returns a page against the order of the keys."""

    def scan(self, keys: KeyRange, items_max: int) -> Any:
        page = super().scan(keys, items_max)
        return replace(page, records=page.records[::-1])


class ForgetsFencing(MemorySpace):
    """Gives every holder of a lease the same number."""

    def next_fencing(self) -> int:
        return 1


class KeepsLeases(MemorySpace):
    """Does not notice the end of a session."""

    def end_session(self, session: str) -> None:
        pass


class BreaksWhicheverIsHeld(MemoryMetadataStore):
    """Breaks a lease even if another session holds it by now."""

    async def break_lease(self, name: str, version: int) -> None:
        record = await self.get(lease_key(name))
        await super().break_lease(name, version if record is None else record.version)


class BreaksForItselfOnly(MemoryMetadataStore):
    """Does not break a lease that another session holds."""

    async def break_lease(self, name: str, version: int) -> None:
        pass


# -- ledgers that break a rule ------------------------------------------------------------------------


class AppendsAfterSeal(StoredLedger):
    """Enforces a seal for readers only."""

    def append(self, entries: tuple[Append, ...], ledger_id: int | None) -> tuple[Appended, ...]:
        sealed, self._is_sealed = self._is_sealed, False
        try:
            return super().append(entries, ledger_id)
        finally:
            self._is_sealed = sealed


class AppendsToWhicheverIsOpen(StoredLedger):
    """Appends to the open ledger, whichever ledger the append names."""

    def append(self, entries: tuple[Append, ...], ledger_id: int | None) -> tuple[Appended, ...]:
        return super().append(entries, self._open_id)


class IsDeletedWhateverItsLedgers(StoredLedger):
    """Deletes without checking the last ledger."""

    def ends_by(self, ledger_id: int) -> bool:
        return True


class ForgetsSequences(StoredLedger):
    """Loses its window when it rolls."""

    def roll(self) -> Any:
        self._windows.clear()
        return super().roll()


class ComparesFirstSequences(StoredLedger):
    """Looks for copies by their first sequence alone."""

    class FirstOnly(Window):
        def overlapping(self, first: int, last: int) -> list[Copy]:
            return [copy for copy in self.copies if copy.sequence.first == first]

    def _append_one(self, entry: Append) -> Appended:
        if entry.sequence:
            self._windows.setdefault(entry.sequence.producer, self.FirstOnly())
        return super()._append_one(entry)


class CutsProducers(StoredLedger):
    """Keeps the first 84 characters of a producer's name."""

    def _append_one(self, entry: Append) -> Appended:
        if entry.sequence:
            entry = replace(entry, sequence=replace(entry.sequence, producer=entry.sequence.producer[:84]))
        return super()._append_one(entry)


class ReplacesBlindly(StoredLedger):
    """Replaces any existing copy when the call names one."""

    def _append_one(self, entry: Append) -> Appended:
        if entry.replaces and entry.sequence:
            for copy in self._windows[entry.sequence.producer].overlapping(entry.sequence.first, entry.sequence.last):
                entry = replace(entry, replaces=copy.position)
        return super()._append_one(entry)


class HidesTrimming(StoredLedger):
    """Continues reading after a trimmed range without an error."""

    def _require_untrimmed(self, entries: EntryRange) -> None:
        pass


class ReadsWithoutBytes(StoredLedger):
    """Limits a read by items only, not by bytes."""

    def read(self, entries: EntryRange, limit: Any) -> Any:
        return super().read(entries, replace(limit, bytes=1 << 40))


class CountsByTheLedgersTime(StoredLedger):
    """Reports a count by the last append to the ledger of its last entry."""

    def count(self, entries: EntryRange, messages_max: int) -> Any:
        counted = super().count(entries, messages_max)
        ledger = self._ledgers.get(counted.upto.ledger_id)
        return replace(counted, appended_ms=ledger[-1].appended_ms) if ledger else counted


class TellsOfTrimmedLedgers(StoredLedger):
    """Includes trimmed ledgers in the list of remaining ones."""

    def trim(self, ledger_id: int, aborted: Any) -> int:
        before = super().ledgers(-1, 100)
        first = super().trim(ledger_id, aborted)
        self.gone = [one for one in before if one.ledger_id < first]
        return first

    def ledgers(self, after: int, items_max: int) -> Any:
        return (*getattr(self, "gone", ()), *super().ledgers(after, items_max))


class CountsMessagesAsEntries(StoredLedger):
    """Reports the number of entries where the number of messages is requested."""

    def ledgers(self, after: int, items_max: int) -> Any:
        return tuple(replace(one, messages=one.entries) for one in super().ledgers(after, items_max))


class TrimsWithoutSettling(StoredLedger):
    """Keeps copies in aborted branches after their ledger is trimmed."""

    def trim(self, ledger_id: int, aborted: Any) -> int:
        return super().trim(ledger_id, frozenset())


class MovesItsTailBack(StoredLedger):
    """Computes the tail from the remaining entries."""

    def tail(self) -> Any:
        tail = super().tail()
        last = max((one.position for ledger in self._ledgers.values() for one in ledger), default=Position(0, -1))
        return replace(tail, last_confirmed=last)


# -- running them -------------------------------------------------------------------------------------


class BrokenStores(MemoryMetadataHarness):
    """Opens clients of a store with one part replaced."""

    patience_s: ClassVar[float] = 0.2
    part: ClassVar[type[Any]]

    def __init__(self, directory: Path, environment: VirtualEnvironment | None = None) -> None:
        super().__init__(directory, environment)
        if issubclass(self.part, MemorySpace):
            self.space = self.part(self.environment)
        if issubclass(self.part, Records):
            self.space.records = self.part()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[IMetadataStore]:
        async with super().open() as store:
            if issubclass(self.part, MemoryMetadataStore):
                store.__class__ = self.part
            yield store


class BelievesHintsOfRecords(MemoryMetadataHarness):
    """A store whose watches return the value of any hint."""

    patience_s: ClassVar[float] = 0.2

    async def mislead(self, opened: IMetadataStore, target: Any) -> None:
        self.space.records.watches.notify([Change(*record_id(target), frozenset(), b"false")])


class BelievesHintsOfEntries(MemoryLedgerHarness):
    """A store whose watches return the entries of any hint."""

    patience_s: ClassVar[float] = 0.2

    async def mislead(self, opened: ILedgerStore, target: Any) -> None:
        row = self.space.rows.find(target)
        last = row.tail().last_confirmed
        row.watches.notify([(LedgerEntry(Position(last.ledger_id, last.entry_id + 1), b"false"),)])


class BrokenLedgers(MemoryLedgerHarness):
    """Opens clients of ledgers with one part replaced."""

    patience_s: ClassVar[float] = 0.2
    part: ClassVar[type[Any]]

    def __init__(self, directory: Path, environment: VirtualEnvironment | None = None) -> None:
        super().__init__(directory, environment)
        part = self.part

        class BrokenRows(LedgerCollection):
            def create(self, name: str) -> StoredLedger:
                row = super().create(name)
                row.__class__ = part
                return row

        self.space.rows = BrokenRows(self.environment.now_ms)

    @asynccontextmanager
    async def open_as(self, identity: str) -> AsyncIterator[ILedgerStore]:
        async with super().open_as(identity) as ledgers:
            yield ledgers


METADATA = [
    (IgnoresVersions, "test_put_at_stale_version_changes_nothing", {}),
    (IgnoresVersions, "test_one_of_two_creates_wins", {}),
    (IgnoresVersions, "test_no_update_is_lost", {}),
    (KeepsOldIndexEntries, "test_entries_follow_their_record", {}),
    (LagsOnDelete, "test_entries_follow_their_record", {}),
    (LagsOnDelete, "test_reads_see_confirmed_writes_of_others", {}),
    (ReusesNumbers, "test_numbers_are_not_used_again", {}),
    (CutsLongKeys, "test_longest_names", {}),
    (HoldsItsStop, "test_edges", {}),
    (StopsPagingAtEqualKeys, "test_pages_among_equal_keys", {"items_max": 2}),
    (ChecksTooEarly, "test_checked_header_excludes_a_concurrent_decision", {}),
    (ChecksTooEarly, "test_crossed_checks_do_not_both_succeed", {}),
    (MakesPartByPart, "test_one_failing_step_fails_all", {"failing": "put"}),
    (MakesPartByPart, "test_cancelled_batch_is_whole_or_not_at_all", {}),
    (AppliesByPartition, "test_one_failing_partition_fails_all", {"failing": "delete"}),
    (MakesAnyStep, "test_a_step_is_no_wider_than_the_reach", {}),
    (ReadsItsOwnPast, "test_reads_see_confirmed_writes_of_others", {}),
    (CallsEveryFailureUnavailable, "test_lost_reply", {"step": "change"}),
    (ArmsLate, "test_armed_when_handed_out", {"target": Key("/w/1")}),
    (SleepsThroughALostConnection, "test_woken_for_what_was_missed", {}),
    (WakesForEver, "test_not_woken_for_ever", {"target": Key("/w/1")}),
    (GivesEveryVersionOne, "test_put_at_version", {}),
    (GivesEveryVersionOne, "test_no_update_is_lost", {}),
    (ScansBackwards, "test_order_is_that_of_utf8", {}),
    (ForgetsFencing, "test_released", {}),
    (ForgetsFencing, "test_fencing_grows_over_a_restart", {}),
    (KeepsLeases, "test_ends_with_its_session", {}),
    (KeepsLeases, "test_crash_ends_it", {}),
    (BreaksWhicheverIsHeld, "test_broken", {}),
    (BreaksForItselfOnly, "test_broken", {}),
]

LEDGERS = [
    (CutsProducers, "test_longest_names", {}),
    (AppendsAfterSeal, "test_sealed_refuses", {}),
    (AppendsToWhicheverIsOpen, "test_closed_ledger_refuses", {}),
    (AppendsToWhicheverIsOpen, "test_named_ledger", {}),
    (IsDeletedWhateverItsLedgers, "test_delete_up_to_a_ledger", {}),
    (ForgetsSequences, "test_window_survives", {}),
    (ComparesFirstSequences, "test_partial_overlap", {"first": 3, "last": 5}),
    (ReplacesBlindly, "test_replaces_the_named_copy", {}),
    (ReplacesBlindly, "test_racing_replacements", {}),
    (HidesTrimming, "test_reading_what_was_trimmed", {}),
    (ReadsWithoutBytes, "test_read_limits", {}),
    (CountsByTheLedgersTime, "test_count_tells_when_its_last_entry_was_appended", {}),
    (TellsOfTrimmedLedgers, "test_ledgers", {}),
    (CountsMessagesAsEntries, "test_ledgers", {}),
    (TrimsWithoutSettling, "test_trim_settles_the_window", {}),
    (MovesItsTailBack, "test_trimmed_to_the_end", {}),
]


def fails(suite: type[Suite], harness: type[Any], name: str, arguments: dict[str, Any], directory: Path) -> None:
    """Run one test of a suite on a harness; it must fail."""
    case = type("Case", (suite,), {"harness": harness})()

    async def test() -> None:
        await getattr(case, name)(**arguments)

    with pytest.raises((AssertionError, TimeoutError, pytest.fail.Exception, Unavailable)):
        asyncio.run(run_test(case, test, directory))


@pytest.mark.parametrize(("part", "name", "arguments"), METADATA)
def test_broken_metadata_store(part: type[Any], name: str, arguments: dict[str, Any], tmp_path: Path) -> None:
    """A metadata store that breaks the rule fails its test."""
    fails(MetadataStoreSuite, type("Broken", (BrokenStores,), {"part": part}), name, arguments, tmp_path)


@pytest.mark.parametrize(("part", "name", "arguments"), LEDGERS)
def test_broken_ledger_store(part: type[Any], name: str, arguments: dict[str, Any], tmp_path: Path) -> None:
    """A ledger store that breaks the rule fails its test."""
    fails(LedgerStoreSuite, type("Broken", (BrokenLedgers,), {"part": part}), name, arguments, tmp_path)


@pytest.mark.parametrize(
    ("suite", "good", "broken"),
    [
        (MetadataStoreSuite, MemoryMetadataHarness, BelievesHintsOfRecords),
        (LedgerStoreSuite, MemoryLedgerHarness, BelievesHintsOfEntries),
    ],
)
def test_believed_hints(suite: type[Suite], good: type[Any], broken: type[Any], tmp_path: Path) -> None:
    """A store whose watches return announced instead of stored values fails the suite; a correct store passes."""
    name = "test_a_hint_is_no_more_than_a_hint"
    for harness in (good, broken):
        (tmp_path / harness.__name__).mkdir()
    fails(suite, broken, name, {}, tmp_path / broken.__name__)
    case = type("Case", (suite,), {"harness": good})()
    asyncio.run(run_test(case, getattr(case, name), tmp_path / good.__name__))


@pytest.mark.parametrize(
    ("suite", "harness", "name", "arguments"),
    [(MetadataStoreSuite, MemoryMetadataHarness, name, arguments) for _, name, arguments in METADATA]
    + [(LedgerStoreSuite, MemoryLedgerHarness, name, arguments) for _, name, arguments in LEDGERS],
)
def test_whole_store_passes(
    suite: type[Suite], harness: type[Any], name: str, arguments: dict[str, Any], tmp_path: Path
) -> None:
    """The same tests pass on the store that breaks nothing, so the failures above are those of the broken part."""
    case = type("Case", (suite,), {"harness": harness})()
    asyncio.run(run_test(case, lambda: getattr(case, name)(**arguments), tmp_path))
