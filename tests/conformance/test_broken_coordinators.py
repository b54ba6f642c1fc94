"""The coordinator suite detects faults: each coordinator here breaks one rule on purpose, and its test fails."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from broken_co_commits import CO_COMMIT_CASES

from txnframework.config import TransactionsSection
from txnframework.errors import (
    Fenced,
    InvalidTransactionState,
    OutcomeUnknown,
    TransactionConflict,
    TransactionNotFound,
    Unavailable,
)
from txnframework.interfaces import ITransactionCoordinator
from txnframework.model import (
    Action,
    Application,
    BatchID,
    Begin,
    End,
    Expect,
    Key,
    Limit,
    OpenQuery,
    Outstanding,
    Put,
    Record,
    SourceRange,
    State,
    SweepResult,
    Transaction,
    TxnID,
)
from txnframework.model.metadata import KeyRange
from txnframework.model.paths import header_key, headers_range
from txnframework.model.records import encode
from txnframework.plugin import CoordinatorContext, Provider, TransactionIds
from txnframework.testing import CoordinatorSuite, WorldHarness
from txnframework_memory.testing import MemoryLedgerHarness, MemoryMetadataHarness
from txnframework_metadata.coordinator.coordinator import MetadataCoordinator
from txnframework_metadata.options import CoordinatorOptions
from txnframework_metadata.plugin import txnframework_buffers, txnframework_pending_ack_stores
from txnframework_metadata.records.headers import ended_header, header_indexes, header_of, read_header, transaction_of
from txnframework_metadata.records.operations import forget, scan_operations

# -- beginning ----------------------------------------------------------------------------------------


class OfNoFamily(MetadataCoordinator):
    """Names a family that is not registered."""

    family = "other"


class CountsFromOne(MetadataCoordinator):
    """Uses numbers that it has not reserved."""

    def __init__(self, context: CoordinatorContext) -> None:
        super().__init__(context)

        class FromOne(TransactionIds):
            async def _reserve(self) -> tuple[int, int]:
                await super()._reserve()
                return 1, 10**6

        self._ids = FromOne(context.store, 0, 100, 9)


class CountsDown(MetadataCoordinator):
    """Uses the highest number of a block first."""

    def __init__(self, context: CoordinatorContext) -> None:
        super().__init__(context)

        class Down(TransactionIds):
            async def next_id(self) -> TxnID:
                found = await super().next_id()
                return TxnID(found.coordinator, 10**6 - found.number)

        self._ids = Down(context.store, 0, 100, 9)


class SaysLogFamily(MetadataCoordinator):
    """Sets the bit of the other family in its ids."""

    def __init__(self, context: CoordinatorContext) -> None:
        super().__init__(context)
        self._ids = TransactionIds(context.store, 0x8000, 100, 9)


class ForgetsWhoBegan(MetadataCoordinator):
    """Records neither principal nor session."""

    async def begin(self, request: Begin) -> Transaction:
        return await super().begin(Begin(request.timeout_ms))


class BeginsInvisibly(MetadataCoordinator):
    """Returns success for a begin whose reply was lost."""

    async def begin(self, request: Begin) -> Transaction:
        try:
            return await super().begin(request)
        finally:
            self._ids._next -= self._ids._next == self._ids._stop - 1


class CallsABeginRefused(MetadataCoordinator):
    """Reports that no transaction began although the outcome is unknown."""

    async def begin(self, request: Begin) -> Transaction:
        inner, self._store = self._store, _OnePut(self._store)
        try:
            return await super().begin(request)
        except OutcomeUnknown as error:
            raise InvalidTransactionState(TxnID(0, 0), State.ABORTED, str(error)) from error
        finally:
            self._store = inner


class _OnePut:
    """A store that does not retry."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._unknown = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def put(self, write: Put) -> int:
        if self._unknown:
            raise OutcomeUnknown("once is enough")
        try:
            return await self._inner.put(write)  # type: ignore[no-any-return]
        except OutcomeUnknown:
            self._unknown = True
            raise


class KnowsEverybody(MetadataCoordinator):
    """Describes transactions that never began."""

    async def describe(self, txn_id: TxnID) -> Transaction:
        try:
            return await super().describe(txn_id)
        except TransactionNotFound:
            return Transaction(txn_id, State.COMMITTED, 0, 0)


class DescribesWithoutParticipants(MetadataCoordinator):
    """Describes transactions without their participants."""

    async def describe(self, txn_id: TxnID) -> Transaction:
        return msgspec.structs.replace(await super().describe(txn_id), participants=frozenset())


class DescribesOneBranch(MetadataCoordinator):
    """Attributes every operation to the branch that began the transaction."""

    async def describe(self, txn_id: TxnID) -> Transaction:
        found = await super().describe(txn_id)
        return msgspec.structs.replace(found, parts=frozenset(replace(part, branch=0) for part in found.parts))


class RemembersDescriptions(MetadataCoordinator):
    """Caches descriptions."""

    async def describe(self, txn_id: TxnID) -> Transaction:
        seen: dict[TxnID, Transaction] = self.__dict__.setdefault("seen", {})
        if txn_id not in seen:
            seen[txn_id] = await super().describe(txn_id)
        return seen[txn_id]


# -- ending -------------------------------------------------------------------------------------------


async def overwrite(coordinator: MetadataCoordinator, request: End) -> Transaction:
    """Write a decision over the stored one."""
    header = await read_header(coordinator._store, request.txn_id)
    if header is None:
        raise TransactionNotFound(request.txn_id)
    document = ended_header(header, request, coordinator._environment.now_ms())
    indexes = header_indexes(request.txn_id, document)
    await coordinator._store.put(Put(header_key(request.txn_id), encode(document), Expect.ANY, indexes))
    return transaction_of(request.txn_id, document)


class LastEndWins(MetadataCoordinator):
    """Changes the outcome with every end."""

    async def end(self, request: End) -> Transaction:
        return await overwrite(self, request)


class LooksBeforeItWrites(MetadataCoordinator):
    """Decides by an earlier read, without comparing the version."""

    async def end(self, request: End) -> Transaction:
        header = await read_header(self._store, request.txn_id)
        if header is None or header.transaction.state is not State.OPEN:
            return await super().end(request)
        return await overwrite(self, request)


class AgreesWithEverybody(MetadataCoordinator):
    """Confirms a late end with the requested action."""

    async def end(self, request: End) -> Transaction:
        try:
            return await super().end(request)
        except InvalidTransactionState:
            return await self.describe(request.txn_id)


class RefusesToRepeat(MetadataCoordinator):
    """Refuses the same End the second time."""

    async def end(self, request: End) -> Transaction:
        found = await self.describe(request.txn_id)
        if found.state is not State.OPEN:
            raise InvalidTransactionState(request.txn_id, found.state, "it has ended")
        return await super().end(request)


class ForgetsBranches(MetadataCoordinator):
    """Commits branch 0 only."""

    async def end(self, request: End) -> Transaction:
        return await super().end(msgspec.structs.replace(request, branches=frozenset({0})))


class EndsWhatNeverBegan(MetadataCoordinator):
    """Ends unknown transactions."""

    async def end(self, request: End) -> Transaction:
        try:
            return await super().end(request)
        except TransactionNotFound:
            return Transaction(request.txn_id, State.ABORTED, 0, 0)


class LetsAnybodyEnd(MetadataCoordinator):
    """Lets any principal end a transaction."""

    async def end(self, request: End) -> Transaction:
        return await super().end(msgspec.structs.replace(request, operator=True))


class IgnoresOperators(MetadataCoordinator):
    """Treats an operator like any other principal."""

    async def end(self, request: End) -> Transaction:
        return await super().end(msgspec.structs.replace(request, operator=False))


class RefusesStrangers(MetadataCoordinator):
    """Requires a missing principal for transactions without a principal."""

    async def end(self, request: End) -> Transaction:
        if request.principal and (await self.describe(request.txn_id)).principal != request.principal:
            raise TransactionConflict(request.txn_id, "no")
        return await super().end(request)


class CallsUnknownUnavailable(MetadataCoordinator):
    """Raises Unavailable although the outcome is unknown."""

    async def end(self, request: End) -> Transaction:
        try:
            return await super().end(request)
        except OutcomeUnknown as error:
            raise Unavailable("try again") from error


class CallsRefusedUnknown(MetadataCoordinator):
    """Raises OutcomeUnknown although nothing was changed."""

    async def end(self, request: End) -> Transaction:
        try:
            return await super().end(request)
        except Unavailable as error:
            raise OutcomeUnknown("who knows") from error


class EndsTwice(MetadataCoordinator):
    """Treats a lost reply as a refusal."""

    async def end(self, request: End) -> Transaction:
        header = await read_header(self._store, request.txn_id)
        if header is None or header.transaction.state is not State.OPEN:
            return await super().end(request)
        document = ended_header(header, request, self._environment.now_ms())
        put = Put(
            header_key(request.txn_id), encode(document), header.version, header_indexes(request.txn_id, document)
        )
        for _ in range(2):
            with contextlib.suppress(OutcomeUnknown):
                await self._store.put(put)
                return transaction_of(request.txn_id, document)
        raise Unavailable("try again")


class DecidesInTwoSteps(MetadataCoordinator):
    """Writes an abort before it commits."""

    async def end(self, request: End) -> Transaction:
        header = await read_header(self._store, request.txn_id)
        if header is not None and header.transaction.state is State.OPEN and request.action is Action.COMMIT:
            await overwrite(self, msgspec.structs.replace(request, action=Action.ABORT))
            return await overwrite(self, request)
        return await super().end(request)


class NeverCloses(MetadataCoordinator):
    """Accepts calls after the close."""

    async def close(self) -> None:
        pass


# -- listing and watching -----------------------------------------------------------------------------


async def every_header(coordinator: MetadataCoordinator) -> list[Transaction]:
    """Return all transactions."""
    left: Any = headers_range()
    found: list[Transaction] = []
    while isinstance(left, KeyRange):
        page = await coordinator._store.scan(left, 100)
        found += [header_of(record).transaction for record in page.records]
        left = page.resume
    return found


class ListsWhatHasEnded(MetadataCoordinator):
    """Lists open and ended transactions."""

    async def list_open(self, query: OpenQuery) -> tuple[Transaction, ...]:
        return tuple(await every_header(self))


class ListsYoungestFirst(MetadataCoordinator):
    """Lists against the order."""

    async def list_open(self, query: OpenQuery) -> tuple[Transaction, ...]:
        return (await super().list_open(query))[::-1]


class BeginsListsAnew(MetadataCoordinator):
    """Knows only the first page."""

    async def list_open(self, query: OpenQuery) -> tuple[Transaction, ...]:
        return await super().list_open(replace(query, after=None))


class SkipsEqualDeadlines(MetadataCoordinator):
    """Continues a page after a deadline, not after a transaction."""

    async def list_open(self, query: OpenQuery) -> tuple[Transaction, ...]:
        if query.after is None:
            return await super().list_open(query)
        last = await self.describe(query.after)
        found = await super().list_open(OpenQuery())
        return tuple(one for one in found if one.deadline_ms > last.deadline_ms)[: query.limit.items]


class ListsBehindOpenOnes(MetadataCoordinator):
    """Loses its place in the list when the transaction there has ended."""

    async def list_open(self, query: OpenQuery) -> tuple[Transaction, ...]:
        if query.after is not None and (await self.describe(query.after)).state is not State.OPEN:
            return ()
        return await super().list_open(query)


class IgnoresAges(MetadataCoordinator):
    """Lists transactions that are too young."""

    async def list_open(self, query: OpenQuery) -> tuple[Transaction, ...]:
        return await super().list_open(replace(query, age_ms_min=0))


class CallsOpenOnesOutstanding(MetadataCoordinator):
    """Lists every transaction with operations."""

    async def outstanding(self, after: TxnID | None, limit: Limit) -> tuple[Outstanding, ...]:
        found = list(await super().outstanding(after, limit))
        for one in await self.list_open(OpenQuery()):
            operations = await scan_operations(self._store, one.txn_id, 100)
            if operations:
                found.append(Outstanding(one.txn_id, one, len(operations)))
        return tuple(found)


class CountsWhatEnded(MetadataCoordinator):
    """Lists ended transactions, settled or not."""

    async def outstanding(self, after: TxnID | None, limit: Limit) -> tuple[Outstanding, ...]:
        headers = sorted(await every_header(self), key=lambda one: one.txn_id)
        found = [one for one in headers if one.finalized_ms is not None and (after is None or one.txn_id > after)]
        return tuple(Outstanding(one.txn_id, one, 1) for one in found[: limit.items])


class LooksAtOnePage(MetadataCoordinator):
    """Stops after one page of operations of open transactions."""

    async def outstanding(self, after: TxnID | None, limit: Limit) -> tuple[Outstanding, ...]:
        found = await super().outstanding(after, limit)
        return found[:1] if after is None else ()


class TellsOfTheSameAgain(MetadataCoordinator):
    """Begins a page with the last item of the page before."""

    async def outstanding(self, after: TxnID | None, limit: Limit) -> tuple[Outstanding, ...]:
        return await super().outstanding(after and TxnID(after.coordinator, after.number - 1), limit)


class WaitsForTheNextEnd(MetadataCoordinator):
    """Waits without checking whether the transaction has ended already."""

    async def watch_ended(self, txn_ids: frozenset[TxnID]) -> dict[TxnID, State]:
        still = frozenset([one for one in txn_ids if (await self.describe(one)).state is State.OPEN])
        return await super().watch_ended(still) if still else await asyncio.Event().wait() or {}


class AnswersAtOnce(MetadataCoordinator):
    """Does not wait."""

    async def watch_ended(self, txn_ids: frozenset[TxnID]) -> dict[TxnID, State]:
        return {txn_id: (await self.describe(txn_id)).state for txn_id in txn_ids}


class AsksAgainAndAgain(MetadataCoordinator):
    """Polls."""

    async def watch_ended(self, txn_ids: frozenset[TxnID]) -> dict[TxnID, State]:
        while True:
            found = {one: (await self.describe(one)).state for one in txn_ids}
            if ended := {one: state for one, state in found.items() if state is not State.OPEN}:
                return ended


class WaitsForTheForgotten(MetadataCoordinator):
    """Treats an unknown transaction as open while it waits."""

    async def watch_ended(self, txn_ids: frozenset[TxnID]) -> dict[TxnID, State]:
        known = [one for one in txn_ids if await read_header(self._store, one) is not None]
        return await super().watch_ended(frozenset(known))


# -- sweeping -----------------------------------------------------------------------------------------


def with_transactions(**changes: int) -> type[MetadataCoordinator]:
    """Return a coordinator with other times and limits than the given ones."""

    class OtherBounds(MetadataCoordinator):
        def __init__(self, context: CoordinatorContext) -> None:
            super().__init__(replace(context, transactions=TransactionsSection(**changes)))

    return OtherBounds


class NeverExpires(MetadataCoordinator):
    """Never aborts by timeout."""

    async def expire(self, now_ms: int) -> SweepResult:
        return SweepResult(0, 0)


class ExpiresWhatItBegan(MetadataCoordinator):
    """Knows deadlines from its own memory only."""

    async def begin(self, request: Begin) -> Transaction:
        began = await super().begin(request)
        self.__dict__.setdefault("mine", {})[began.txn_id] = began.deadline_ms
        return began

    async def expire(self, now_ms: int) -> SweepResult:
        mine: dict[TxnID, int] = self.__dict__.setdefault("mine", {})
        for txn_id in [one for one, deadline_ms in mine.items() if deadline_ms + 1_000 < now_ms][:100]:
            del mine[txn_id]
            await self.end(End(txn_id, Action.ABORT, operator=True))
        return SweepResult(0, 0)


class ExpiresBlindly(MetadataCoordinator):
    """Aborts by an outdated read."""

    async def expire(self, now_ms: int) -> SweepResult:
        for one in await every_header(self):
            if one.deadline_ms + 1_000 < now_ms:
                await overwrite(self, End(one.txn_id, Action.ABORT))
        return SweepResult(1, 0)


class ExpiresAsNobody(MetadataCoordinator):
    """Aborts only transactions without a principal."""

    async def expire(self, now_ms: int) -> SweepResult:
        for one in await self.list_open(OpenQuery()):
            if one.deadline_ms + 1_000 < now_ms and not one.principal:
                await self.end(End(one.txn_id, Action.ABORT))
        return SweepResult(0, 0)


class ForgetsWithoutSettling(MetadataCoordinator):
    """Deletes old transactions with their operations."""

    async def collect(self, now_ms: int) -> SweepResult:
        done = 0
        for one in await every_header(self):
            if one.finalized_ms is not None and one.finalized_ms + 3_700_000 < now_ms:
                await forget(self._store, await scan_operations(self._store, one.txn_id, 100))
                await self._store.delete(header_key(one.txn_id), Expect.ANY)
                done += 1
        return SweepResult(done, 0)


class ForgetsHeadersFirst(MetadataCoordinator):
    """Deletes the header before the outcome has taken effect."""

    async def collect(self, now_ms: int) -> SweepResult:
        done = 0
        for one in await every_header(self):
            if one.finalized_ms is not None and one.finalized_ms + 3_700_000 < now_ms:
                participants = (await self.describe(one.txn_id)).participants
                await self._store.delete(header_key(one.txn_id), Expect.ANY)
                for participant in sorted(participants):
                    await self._sweeps._participants.settle(participant, one)
                done += 1
        return SweepResult(done, 0)


class ForgetsOpenOnes(MetadataCoordinator):
    """Deletes old transactions, ended or not."""

    async def collect(self, now_ms: int) -> SweepResult:
        for one in await every_header(self):
            if one.created_ms + 3_700_000 < now_ms:
                await self._store.delete(header_key(one.txn_id), Expect.ANY)
        return await super().collect(now_ms)


class RefusesASecondSweep(MetadataCoordinator):
    """Fails a sweep that meets another one of its process."""

    sweeping = False

    async def collect(self, now_ms: int) -> SweepResult:
        if self.sweeping:
            raise Unavailable("a sweep is under way")
        self.sweeping = True
        try:
            return await super().collect(now_ms)
        finally:
            self.sweeping = False


class StopsAtTheFirst(MetadataCoordinator):
    """Stops settling when the oldest transaction cannot be settled."""

    async def collect(self, now_ms: int) -> SweepResult:
        for one in sorted(await every_header(self), key=lambda one: one.txn_id):
            if one.finalized_ms is not None and (await self.settle(one.txn_id)).left:
                return SweepResult(0, 1)
        return await super().collect(now_ms)


class SettlesNothing(MetadataCoordinator):
    """Settles nothing itself."""

    async def settle(self, txn_id: TxnID) -> SweepResult:
        found = await self.describe(txn_id)
        if found.state is State.OPEN:
            raise InvalidTransactionState(txn_id, State.OPEN, "it is open")
        return SweepResult(0, 0)


class SettlesOpenOnes(MetadataCoordinator):
    """Releases acknowledgments of an open transaction."""

    async def settle(self, txn_id: TxnID) -> SweepResult:
        with contextlib.suppress(InvalidTransactionState):
            return await super().settle(txn_id)
        return SweepResult(0, 0)


# -- applications -------------------------------------------------------------------------------------


class OffersHalfARole(MetadataCoordinator):
    """Declares the ranges of a batch without implementing them."""

    async def finish_batch(  # type: ignore[override]
        self, batch: BatchID, txn_id: TxnID, *, ranges: tuple[SourceRange, ...]
    ) -> None:
        await super().finish_batch(batch, txn_id, ranges)


class ClaimsAnew(MetadataCoordinator):
    """Treats a repeated claim as one by another run."""

    async def claim(self, name: str, run: str) -> Application:
        claims = self.__dict__["claims"] = self.__dict__.get("claims", 0) + 1
        return await super().claim(name, f"{run}-{claims}")


class FencesNobody(MetadataCoordinator):
    """Does not fence earlier runs."""

    async def claim(self, name: str, run: str) -> Application:
        try:
            return await super().claim(name, run)
        except Fenced:
            found = await self.application(name)
            assert found is not None
            return found

    async def begin_batch(self, batch: BatchID, timeout_ms: int) -> Transaction:
        try:
            return await super().begin_batch(batch, timeout_ms)
        except Fenced:
            return await self.begin(Begin(timeout_ms))


class FollowsAnybody(MetadataCoordinator):
    """Lets a run follow a run that it was not started after."""

    async def begin_batch(self, batch: BatchID, timeout_ms: int) -> Transaction:
        return await super().begin_batch(replace(batch, follows=None), timeout_ms)


class BeginsForEverybody(MetadataCoordinator):
    """Begins a new transaction for every call of one batch."""

    async def begin_batch(self, batch: BatchID, timeout_ms: int) -> Transaction:
        await super().begin_batch(batch, timeout_ms)
        return await self.begin(Begin(timeout_ms))


class ContinuesForOthers(MetadataCoordinator):
    """Continues an open transaction of any run."""

    async def claim(self, name: str, run: str) -> Application:
        found = await self.application(name)
        if found is not None and found.txn_id is not None and run not in (found.run, *found.past_runs):
            self.__dict__["left"] = found.txn_id
        return await super().claim(name, run)

    async def begin_batch(self, batch: BatchID, timeout_ms: int) -> Transaction:
        await self.claim(batch.application, batch.run)
        left = self.__dict__.get("left")
        return await self.describe(left) if left is not None else await super().begin_batch(batch, timeout_ms)


class BeginsBesides(MetadataCoordinator):
    """Begins a batch without ending the earlier one."""

    async def begin_batch(self, batch: BatchID, timeout_ms: int) -> Transaction:
        began: dict[BatchID, Transaction] = self.__dict__.setdefault("began", {})
        if batch not in began:
            began[batch] = await self.begin(Begin(timeout_ms))
        return await self.describe(began[batch].txn_id)


class ReturnsWhatEnded(MetadataCoordinator):
    """Returns the transaction of a batch even if it has ended."""

    async def begin_batch(self, batch: BatchID, timeout_ms: int) -> Transaction:
        found = await self.application(batch.application)
        if found is not None and found.txn_id is not None and found.version == batch.version:
            return await self.describe(found.txn_id)
        return await super().begin_batch(batch, timeout_ms)


class ForgetsConsumed(MetadataCoordinator):
    """Records no ranges."""

    async def finish_batch(self, batch: BatchID, txn_id: TxnID, ranges: tuple[SourceRange, ...]) -> None:
        await super().finish_batch(batch, txn_id, ())


class TellsWhatIsDurable(MetadataCoordinator):
    """Reports a committed batch only after its settlement."""

    async def application(self, name: str) -> Application | None:
        found = await super().application(name)
        if found is None or found.txn_id is None or not found.committed:
            return found
        if await scan_operations(self._store, found.txn_id, 100):
            return replace(found, committed=found.committed[:-1])
        return found

    async def claim(self, name: str, run: str) -> Application:
        before = await self.application(name)
        claimed = await super().claim(name, run)
        return claimed if before is None else replace(claimed, committed=before.committed)


class CarriesEverything(MetadataCoordinator):
    """Takes the earlier batch for committed."""

    async def application(self, name: str) -> Application | None:
        found = await super().application(name)
        if found is None or found.txn_id is None:
            return found
        from txnframework.model import CommittedBatch

        known = {one.version for one in found.committed}
        more = () if found.version in known else (CommittedBatch(found.query, found.version, ()),)
        return replace(found, committed=(*found.committed, *more))


class FinishesLate(MetadataCoordinator):
    """Finishes a batch without checking that its transaction is open."""

    async def finish_batch(self, batch: BatchID, txn_id: TxnID, ranges: tuple[SourceRange, ...]) -> None:
        with contextlib.suppress(TransactionConflict):
            await super().finish_batch(batch, txn_id, ranges)


class GivesUp(MetadataCoordinator):
    """Treats a lost reply as a conflict."""

    async def begin_batch(self, batch: BatchID, timeout_ms: int) -> Transaction:
        inner, self._applications._store = self._applications._store, _CallsLostConflict(self._store)
        try:
            return await super().begin_batch(batch, timeout_ms)
        finally:
            self._applications._store = inner


class _CallsLostConflict:
    """A store that reports every failure as a conflict."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def put(self, write: Put) -> int:
        try:
            return await self._inner.put(write)  # type: ignore[no-any-return]
        except (OutcomeUnknown, Unavailable) as error:
            raise TransactionConflict(None, "lost") from error

    async def get(self, key: Key) -> Record | None:
        try:
            return await self._inner.get(key)  # type: ignore[no-any-return]
        except Unavailable as error:
            raise TransactionConflict(None, "lost") from error


CASES: list[tuple[type[MetadataCoordinator], str]] = [
    (OfNoFamily, "test_keeps_the_interface"),
    (ForgetsWhoBegan, "test_open_after_begin"),
    (KnowsEverybody, "test_describe_unknown"),
    (CountsDown, "test_ids_count_up"),
    (SaysLogFamily, "test_ids_of_the_metadata_family"),
    (CountsFromOne, "test_ids_of_racing_processes"),
    (CountsFromOne, "test_ids_never_repeat"),
    (CallsABeginRefused, "test_begin_lost_replies"),
    (DescribesWithoutParticipants, "test_participants"),
    (DescribesOneBranch, "test_parts"),
    (ForgetsBranches, "test_ended"),
    (LastEndWins, "test_same_end_again"),
    (RefusesToRepeat, "test_same_end_again"),
    (LastEndWins, "test_other_end"),
    (AgreesWithEverybody, "test_other_end"),
    (AgreesWithEverybody, "test_other_branches"),
    (ForgetsBranches, "test_other_branches"),
    (EndsWhatNeverBegan, "test_end_of_unknown"),
    (LetsAnybodyEnd, "test_principals"),
    (ForgetsWhoBegan, "test_principals"),
    (IgnoresOperators, "test_operators"),
    (RefusesStrangers, "test_no_principal"),
    (LooksBeforeItWrites, "test_racing_ends"),
    (LooksBeforeItWrites, "test_many_racing_ends"),
    (EndsTwice, "test_lost_reply"),
    (RefusesToRepeat, "test_lost_reply"),
    (CallsUnknownUnavailable, "test_cut_off_while_deciding"),
    (CallsRefusedUnknown, "test_end_refused_steps"),
    (DecidesInTwoSteps, "test_killed_while_deciding"),
    (RemembersDescriptions, "test_killed_while_deciding"),
    (NeverCloses, "test_closing_while_deciding"),
    (ListsWhatHasEnded, "test_oldest_deadline_first"),
    (ListsYoungestFirst, "test_oldest_deadline_first"),
    (BeginsListsAnew, "test_pages"),
    (SkipsEqualDeadlines, "test_pages"),
    (ListsBehindOpenOnes, "test_page_after_one_that_has_ended"),
    (IgnoresAges, "test_ages"),
    (CallsOpenOnesOutstanding, "test_outstanding"),
    (CountsWhatEnded, "test_outstanding"),
    (LooksAtOnePage, "test_outstanding_pages"),
    (TellsOfTheSameAgain, "test_outstanding_pages"),
    (WaitsForTheNextEnd, "test_ended_already"),
    (AnswersAtOnce, "test_woken_by_an_end"),
    (AsksAgainAndAgain, "test_waiting_reads_nothing"),
    (WaitsForTheForgotten, "test_unknown_counts_as_committed"),
    (NeverCloses, "test_closing_ends_the_wait"),
    (NeverExpires, "test_aborted_past_the_deadline"),
    (with_transactions(max_clock_skew_ms=0), "test_clock_skew_is_spared"),
    (with_transactions(max_clock_skew_ms=60_000), "test_clock_skew_is_spared"),
    (ExpiresWhatItBegan, "test_after_a_restart"),
    (with_transactions(sweep_transactions_max=1_000), "test_many_at_once"),
    (NeverExpires, "test_many_at_once"),
    (ExpiresBlindly, "test_races_with_commit"),
    (ExpiresAsNobody, "test_whoever_owns_it"),
    (with_transactions(retention_ms=0), "test_outcome_is_kept"),
    (ForgetsOpenOnes, "test_open_ones_stay"),
    (ForgetsWithoutSettling, "test_settles_what_others_left"),
    (ForgetsWithoutSettling, "test_out_of_reach_is_kept"),
    (ForgetsHeadersFirst, "test_out_of_reach_is_kept"),
    (StopsAtTheFirst, "test_one_out_of_reach_hides_no_other"),
    (RefusesASecondSweep, "test_sweeps_that_meet"),
    (ForgetsHeadersFirst, "test_killed_while_collecting"),
    (SettlesNothing, "test_settle"),
    (SettlesOpenOnes, "test_open_ones_are_not_settled"),
    (OffersHalfARole, "test_keeps_the_application_interface"),
    (ClaimsAnew, "test_claim"),
    (FencesNobody, "test_past_runs_are_fenced"),
    (FollowsAnybody, "test_a_run_follows_one_run"),
    (BeginsForEverybody, "test_one_transaction_a_batch"),
    (BeginsForEverybody, "test_racing_first_calls"),
    (ContinuesForOthers, "test_new_run_aborts_the_open_transaction"),
    (BeginsForEverybody, "test_fencing_at_any_step"),
    (BeginsBesides, "test_next_batch_aborts_the_open_one"),
    (ReturnsWhatEnded, "test_batch_that_ended_begins_another"),
    (ForgetsConsumed, "test_outcome_is_carried"),
    (TellsWhatIsDurable, "test_outcome_is_carried"),
    (CarriesEverything, "test_aborted_batch_is_not_carried"),
    (FinishesLate, "test_finishing_an_ended_transaction"),
    (GivesUp, "test_application_lost_replies"),
    (GivesUp, "test_application_refused_steps"),
    (TellsWhatIsDurable, "test_killed_at_any_step"),
    *CO_COMMIT_CASES,
]

UNBROKEN = {
    "test_ids_of_the_log_family",  # for a family that is not here yet
}


def harness_of(broken: type[MetadataCoordinator]) -> type[WorldHarness]:
    """Return a harness whose processes have a coordinator of this class."""

    async def open_coordinator(context: CoordinatorContext) -> ITransactionCoordinator:
        return broken(replace(context, options=CoordinatorOptions()))

    class Broken(WorldHarness):
        patience_s = 0.2
        stores = MemoryMetadataHarness
        ledgers = MemoryLedgerHarness
        coordinator = Provider("broken", open_coordinator, broken)
        (buffer,) = txnframework_buffers()
        (pending_acks,) = txnframework_pending_ack_stores()

    return Broken


@pytest.mark.parametrize(("broken", "name"), CASES)
def test_broken_coordinator(broken: type[MetadataCoordinator], name: str, must_fail: Callable[..., None]) -> None:
    """A coordinator that breaks the rule fails its test."""
    must_fail(CoordinatorSuite, harness_of(broken), name)


def test_every_test_has_teeth(every_test_has_teeth: Callable[..., None]) -> None:
    """Each test of the suite fails on some broken coordinator."""
    every_test_has_teeth(CoordinatorSuite, {name for _, name in CASES}, UNBROKEN)
