"""The buffer suite detects faults: each buffer here breaks one rule on purpose, and the test of that rule fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Set
from typing import Any

import pytest
from msgspec.structs import replace

from txnframework.errors import LedgerClosed, OutcomeUnknown, Unavailable
from txnframework.interfaces import IManagedLedger, ITransactionBuffer
from txnframework.model import (
    Append,
    Appended,
    Branch,
    EntryPage,
    EntryRange,
    Expect,
    Isolation,
    Position,
    Put,
    ReadableEntry,
    ReadPlan,
    ReadRequest,
    SweepResult,
    Transaction,
    Visibility,
)
from txnframework.model.entry_view import EntryView
from txnframework.model.paths import abort_records_range
from txnframework.plugin import Provider, SegmentContext
from txnframework.testing import BufferSuite, WorldHarness
from txnframework_memory.testing import MemoryLedgerHarness, MemoryMetadataHarness
from txnframework_metadata.buffer.abort_records import all_aborted_branches
from txnframework_metadata.buffer.buffer import MetadataBuffer
from txnframework_metadata.plugin import txnframework_coordinators
from txnframework_metadata.records.operations import operation_indexes, scan_operations


class ShowsEverything(MetadataBuffer):
    """Reads every entry as committed."""

    async def read(self, request: ReadRequest) -> EntryPage:
        return await super().read(replace(request, isolation=Isolation.READ_UNCOMMITTED))


class JudgesEverybody(MetadataBuffer):
    """Takes unknown transactions for committed."""

    async def read(self, request: ReadRequest) -> EntryPage:
        tail = await self.ledger_of_test.tail()
        found = await self.ledger_of_test.read(EntryRange(request.after.entry, tail.last_confirmed), request.limit)
        shown = tuple(ReadableEntry(one.position, one.data, None, Visibility.COMMITTED) for one in found)
        return EntryPage(shown, tail.last_confirmed)

    ledger_of_test: IManagedLedger


class ShowsControlEntries(MetadataBuffer):
    """Returns control entries of another family."""

    async def read(self, request: ReadRequest) -> EntryPage:
        page = await super().read(request)
        found = await self.ledger_of_test.read(EntryRange(request.after.entry, page.upto), request.limit)
        control = [one for one in found if one.position in page.skipped and EntryView(one.data).producer == "control"]
        shown = [ReadableEntry(one.position, one.data, None, Visibility.COMMITTED) for one in control]
        return EntryPage((*page.entries, *shown), page.upto)

    ledger_of_test: IManagedLedger


class WritesNoIntent(MetadataBuffer):
    """Appends without an intent."""

    async def append(self, entries: tuple[Append, ...]) -> tuple[Appended, ...]:
        tail = await self.ledger_of_test.tail()
        return await self.ledger_of_test.append(entries, tail.open_ledger_id)

    ledger_of_test: IManagedLedger


class ForgetsWhatItSkipped(MetadataBuffer):
    """Skips aborted entries without reporting them."""

    async def read(self, request: ReadRequest) -> EntryPage:
        return replace(await super().read(request), skipped=())


class ShortensPlans(MetadataBuffer):
    """Plans up to a position of its own computation."""

    async def plan(self, after: Position, upto: Position) -> ReadPlan:
        plan = await super().plan(after, upto)
        return replace(plan, entries=EntryRange(after, min(upto, Position(upto.ledger_id, upto.entry_id - 1))))


class NamesNoAborted(MetadataBuffer):
    """Plans without the aborted branches."""

    async def plan(self, after: Position, upto: Position) -> ReadPlan:
        return replace(await super().plan(after, upto), aborted=frozenset())


class FinishesEarly(MetadataBuffer):
    """Calls a segment finished as soon as it is sealed."""

    async def finished(self, at: Position) -> bool:
        return True


class GuessesBeforeItKnows(MetadataBuffer):
    """Answers before the recovery is complete."""

    async def resolve(self, branch: Branch) -> Visibility:
        return Visibility.COMMITTED if self._view.announced is None else await super().resolve(branch)


class GoesOnAfterItsClose(MetadataBuffer):
    """Performs calls that waited for the recovery after the close."""

    def _require_open(self) -> None:
        return


class WakesAtOnce(MetadataBuffer):
    """Never waits."""

    async def advanced(self, beyond: Position) -> Position:
        return beyond


class AsksAgainAndAgain(MetadataBuffer):
    """Polls while it waits."""

    async def advanced(self, beyond: Position) -> Position:
        found = await self.max_read_position()
        return found if found > beyond else await self.advanced(beyond)


class ReadsAbortRecordsFirst(MetadataBuffer):
    """Reads abort records before it reads intents."""

    async def read(self, request: ReadRequest) -> EntryPage:
        outcomes = self._view.outcomes
        found = await all_aborted_branches(self.context_of_test.store, self.segment, 0, 1_000, 100)

        async def known(written: Mapping[int, Set[Branch]], *_: object) -> frozenset[Branch]:
            places = [(branch, ledger_id) for ledger_id, branches in written.items() for branch in branches]
            return frozenset(found | {place[0] for place in places if outcomes.is_aborted(*place)})

        self._fetching.__dict__["_judge"] = known
        return await super().read(request)

    context_of_test: SegmentContext


class ReadsTheTailLast(MetadataBuffer):
    """Reads the tail after the operations."""

    def __init__(self, context: SegmentContext) -> None:
        super().__init__(context)
        view, read, intents = self._view, self._view._read, self._view._intents

        async def read_in_this_order(*arguments: Any) -> Any:
            found = await intents()

            async def known() -> Any:
                return found

            view.__dict__["_intents"] = known
            try:
                return await read(*arguments)
            finally:
                view.__dict__["_intents"] = intents

        view.__dict__["_read"] = read_in_this_order


class ForgetsBeforeItRecords(MetadataBuffer):
    """Deletes the operations before it writes the abort record."""

    async def settle(self, ended: Transaction) -> None:
        operations = await scan_operations(self.context_of_test.store, ended.txn_id, 100)
        for operation in operations:
            await self.context_of_test.store.delete(operation.record.key, Expect.ANY)
        for operation in operations:
            put = Put(
                operation.record.key,
                operation.record.value,
                Expect.ANY,
                operation_indexes(ended.txn_id, operation.document),
            )
            await self.context_of_test.store.put(put)
        await super().settle(ended)

    context_of_test: SegmentContext


class KnowsNoSequences(MetadataBuffer):
    """Appends repeated sends again."""

    async def append(self, entries: tuple[Append, ...]) -> tuple[Appended, ...]:
        return await super().append(tuple(replace(entry, sequence=None) for entry in entries))


class CallsUnknownUnavailable(MetadataBuffer):
    """Raises Unavailable although the outcome is unknown."""

    async def append(self, entries: tuple[Append, ...]) -> tuple[Appended, ...]:
        try:
            return await super().append(entries)
        except OutcomeUnknown as error:
            raise Unavailable("try again") from error


class StaysWithItsLedger(MetadataBuffer):
    """Fails when its ledger is no longer the open one."""

    def __init__(self, context: SegmentContext) -> None:
        class Ledger:
            def __getattr__(self, name: str) -> Any:
                return getattr(context.ledger, name)

            async def append(self, entries: tuple[Append, ...], ledger_id: int | None) -> tuple[Appended, ...]:
                try:
                    return await context.ledger.append(entries, ledger_id)
                except LedgerClosed as error:
                    raise Unavailable("rolled over") from error

        super().__init__(dataclasses.replace(context, ledger=Ledger()))  # type: ignore[arg-type]


class AppendsToAnyLedger(MetadataBuffer):
    """Appends to the open ledger when the ledger of the intent is closed."""

    def __init__(self, context: SegmentContext) -> None:
        class Ledger:
            def __getattr__(self, name: str) -> Any:
                return getattr(context.ledger, name)

            async def append(self, entries: tuple[Append, ...], ledger_id: int | None) -> tuple[Appended, ...]:
                try:
                    return await context.ledger.append(entries, ledger_id)
                except LedgerClosed:
                    return await context.ledger.append(entries, (await context.ledger.tail()).open_ledger_id)

        super().__init__(dataclasses.replace(context, ledger=Ledger()))  # type: ignore[arg-type]


class TrimsAbortRecords(MetadataBuffer):
    """Deletes abort records of ledgers that still exist."""

    async def trim(self, ledger_id: int) -> SweepResult:
        swept = await super().trim(ledger_id)
        left = abort_records_range(self.segment)
        for record in (await self.context_of_test.store.scan(left, 1_000)).records:
            await self.context_of_test.store.delete(record.key, Expect.ANY)
        return swept

    context_of_test: SegmentContext


CASES = [
    (AsksAgainAndAgain, "test_waiting_reads_nothing"),
    (WritesNoIntent, "test_killed_while_sending"),
    (WritesNoIntent, "test_ended_while_sending"),
    (ReadsAbortRecordsFirst, "test_settled_while_reading"),
    (ReadsTheTailLast, "test_written_while_reading"),
    (ForgetsBeforeItRecords, "test_killed_while_settling"),
    (KnowsNoSequences, "test_lost_reply_while_sending"),
    (CallsUnknownUnavailable, "test_lost_reply_while_sending"),
    (CallsUnknownUnavailable, "test_cut_off_while_sending"),
    (StaysWithItsLedger, "test_rolled_over_while_sending"),
    (AppendsToAnyLedger, "test_commit_while_another_process_sends"),
    (TrimsAbortRecords, "test_trimmed_and_forgotten"),
    (ShowsEverything, "test_open_pins"),
    (ShowsEverything, "test_aborted_is_skipped"),
    (ShowsEverything, "test_branches_that_count"),
    (ShowsEverything, "test_intent_comes_first"),
    (ShowsEverything, "test_restart"),
    (JudgesEverybody, "test_entries_of_another_family_are_refused"),
    (JudgesEverybody, "test_outcomes_of_another_family"),
    (ShowsControlEntries, "test_control_entries_of_another_family"),
    (GuessesBeforeItKnows, "test_answers_wait_for_the_recovery"),
    (GoesOnAfterItsClose, "test_closing_while_recovering"),
    (WritesNoIntent, "test_open_pins"),
    (WritesNoIntent, "test_aborted_is_skipped"),
    (WritesNoIntent, "test_ended_transaction_is_refused"),
    (WritesNoIntent, "test_copy_of_an_open_transaction_is_a_conflict"),
    (WritesNoIntent, "test_another_principal_is_refused"),
    (ForgetsWhatItSkipped, "test_pages_of_skipped_entries_are_progress"),
    (ShortensPlans, "test_plan_is_never_shortened"),
    (NamesNoAborted, "test_plan_names_what_to_skip"),
    (NamesNoAborted, "test_plan_outlives_the_transaction"),
    (FinishesEarly, "test_finished"),
    (WakesAtOnce, "test_woken_by_the_end_of_a_transaction"),
]


@pytest.mark.parametrize(("broken", "name"), CASES)
def test_broken_buffer(broken: type[MetadataBuffer], name: str, must_fail: Callable[..., None]) -> None:
    """A buffer that breaks the rule fails its test."""

    async def open_buffer(context: SegmentContext) -> ITransactionBuffer:
        buffer = broken(context)
        buffer.__dict__.update(ledger_of_test=context.ledger, context_of_test=context)
        return buffer

    class Broken(WorldHarness):
        patience_s = 0.2
        stores = MemoryMetadataHarness
        ledgers = MemoryLedgerHarness
        (coordinator,) = txnframework_coordinators()
        buffer = Provider("broken", open_buffer, broken)

    must_fail(BufferSuite, Broken, name)
