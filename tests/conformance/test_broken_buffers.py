"""The buffer suite notices: each buffer here breaks one rule on purpose, and the test of that rule fails."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from txnframework.interfaces import IManagedLedger, ITransactionBuffer
from txnframework.model import Append, Appended, EntryPage, EntryRange, Isolation, Position, ReadPlan, ReadRequest
from txnframework.plugin import Provider, SegmentContext
from txnframework.testing import BufferSuite, WorldHarness
from txnframework.testing._suites._base import run_test
from txnframework_memory.testing import MemoryLedgerHarness, MemoryMetadataHarness
from txnframework_metadata._buffer import MetadataBuffer
from txnframework_metadata.plugin import txnframework_coordinators


class ShowsEverything(MetadataBuffer):
    """Reads committed data as if everything were."""

    async def read(self, request: ReadRequest) -> EntryPage:
        return await super().read(replace(request, isolation=Isolation.READ_UNCOMMITTED))


class WritesNoIntent(MetadataBuffer):
    """Appends without saying so first."""

    async def append(self, entries: tuple[Append, ...]) -> tuple[Appended, ...]:
        tail = await self.ledger_of_test.tail()
        return await self.ledger_of_test.append(entries, tail.open_ledger_id)

    ledger_of_test: IManagedLedger


class ForgetsWhatItSkipped(MetadataBuffer):
    """Passes aborted entries without saying which."""

    async def read(self, request: ReadRequest) -> EntryPage:
        return replace(await super().read(request), skipped=())


class ShortensPlans(MetadataBuffer):
    """Plans to what it computes itself."""

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


class WakesAtOnce(MetadataBuffer):
    """Never waits."""

    async def advanced(self, beyond: Position) -> Position:
        return beyond


CASES = [
    (ShowsEverything, "test_open_pins"),
    (ShowsEverything, "test_aborted_is_skipped"),
    (ShowsEverything, "test_branches_that_count"),
    (ShowsEverything, "test_intent_comes_first"),
    (ShowsEverything, "test_restart"),
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
def test_broken_buffer(broken: type[MetadataBuffer], name: str, tmp_path: Path) -> None:
    """A buffer that breaks the rule fails its test."""

    async def open_buffer(context: SegmentContext) -> ITransactionBuffer:
        buffer = broken(context)
        if isinstance(buffer, WritesNoIntent):
            buffer.ledger_of_test = context.ledger
        return buffer

    class Broken(WorldHarness):
        patience_s = 0.2
        stores = MemoryMetadataHarness
        ledgers = MemoryLedgerHarness
        (coordinator,) = txnframework_coordinators()
        buffer = Provider("broken", open_buffer, broken)

    case = type("Case", (BufferSuite,), {"harness": Broken})()
    with pytest.raises((AssertionError, TimeoutError, pytest.fail.Exception)):
        asyncio.run(run_test(case, getattr(case, name), tmp_path))
