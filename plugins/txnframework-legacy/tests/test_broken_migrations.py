"""The rules of migrations detect faults: each part here breaks one rule, and the test of that rule fails."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_conformance import LogFamilyInMemory

from txnframework.errors import TxnFrameworkError
from txnframework.interfaces import IPendingAckStore, ITransactionBuffer
from txnframework.model import PendingAcks, Transaction
from txnframework.plugin import SegmentContext, SubscriptionContext
from txnframework.testing import BufferSuite, PendingAckSuite
from txnframework.testing._suites._base import Suite, run_test
from txnframework_legacy.buffer.buffer import MarkerBuffer
from txnframework_legacy.pending_acks.store import LogPendingAcks

FAILURES = (AssertionError, TimeoutError, pytest.fail.Exception, TxnFrameworkError)


class RecordsNothing(MarkerBuffer):
    """Takes a transaction for settled on a sealed topic without abort records."""

    async def _record_outcome(self, ended: Transaction) -> None:
        return


class RecordsAllBranches(MarkerBuffer):
    """Stores abort records for branches that count, too."""

    async def _record_outcome(self, ended: Transaction) -> None:
        await super()._record_outcome(msgspec.structs.replace(ended, branches=frozenset()))


class SealsNothing(LogPendingAcks):
    """Returns what is held, and takes more."""

    async def seal(self) -> PendingAcks:
        return await self.recover()


class SealsWhatExists(LogPendingAcks):
    """Seals no log that another process may create later."""

    async def seal(self) -> PendingAcks:
        log = await self._opened(make=False)
        if log is not None:
            await log.seal()
        return await self.recover()


class ReturnsNothing(LogPendingAcks):
    """Seals, and does not say what is held."""

    async def seal(self) -> PendingAcks:
        await super().seal()
        return PendingAcks({}, {})


class AppliesNothing(LogPendingAcks):
    """Takes every hold for released, without applying it to the cursor."""

    async def settle(self, ended: Transaction) -> None:
        return

    async def recover(self) -> PendingAcks:
        return PendingAcks({}, {})


BUFFERS: list[tuple[type[MarkerBuffer], str]] = [
    (RecordsNothing, "test_settled_after_the_seal"),
    (RecordsAllBranches, "test_settled_after_the_seal"),
]
PENDING_ACKS: list[tuple[type[LogPendingAcks], str]] = [
    (SealsNothing, "test_sealed"),
    (ReturnsNothing, "test_sealed"),
    (SealsWhatExists, "test_sealed_before_the_first_acknowledgment"),
    (AppliesNothing, "test_ended_after_the_seal"),
    (ReturnsNothing, "test_killed_while_sealing"),
]


def must_fail(suite: type[Suite], harness: type[Any], name: str, directory: Path) -> None:
    case = type("Case", (suite,), {"harness": harness})()
    with pytest.raises(FAILURES):
        asyncio.run(run_test(case, getattr(case, name), directory))


@pytest.mark.parametrize(("broken", "name"), BUFFERS)
def test_broken_buffer(broken: type[MarkerBuffer], name: str, tmp_path: Path) -> None:
    """A buffer that breaks the rule fails its test."""

    async def open_buffer(context: SegmentContext) -> ITransactionBuffer:
        return broken(context)

    class Broken(LogFamilyInMemory):
        patience_s = 0.2
        buffer = replace(LogFamilyInMemory.buffer, open=open_buffer, implementation=broken)

    must_fail(BufferSuite, Broken, name, tmp_path)


@pytest.mark.parametrize(("broken", "name"), PENDING_ACKS)
def test_broken_pending_acks(broken: type[LogPendingAcks], name: str, tmp_path: Path) -> None:
    """A pending-ack store that breaks the rule fails its test."""

    async def open_store(context: SubscriptionContext) -> IPendingAckStore:
        return broken(context)

    class Broken(LogFamilyInMemory):
        patience_s = 0.2
        pending_acks = replace(LogFamilyInMemory.pending_acks, open=open_store, implementation=broken)

    must_fail(PendingAckSuite, Broken, name, tmp_path)
