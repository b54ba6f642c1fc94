"""The pending-ack suite detects faults: each store here breaks one rule on purpose, and its test fails."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from zope.interface import directlyProvides, providedBy

from txnframework.errors import Closed, OutcomeUnknown, TransactionConflict, TransactionNotFound, Unavailable
from txnframework.interfaces import IMetadataStore, IPendingAckStore
from txnframework.model import Ack, AckRequest, Branch, Expect, PendingAcks, Record, State, Step, Transaction
from txnframework.model.ack_overlap import Verdict
from txnframework.model.cursor import Cursor, unite
from txnframework.model.paths import operations_prefix
from txnframework.model.records import AckOperation
from txnframework.plugin import Provider, SubscriptionContext
from txnframework.runtime.call_groups import Answers, CallGroups
from txnframework.testing import PendingAckSuite, WorldHarness
from txnframework_memory.testing import MemoryLedgerHarness, MemoryMetadataHarness
from txnframework_metadata.pending_acks.groups import ack_group_rules
from txnframework_metadata.pending_acks.records import AckRecords, ConfirmedAcks
from txnframework_metadata.pending_acks.store import MetadataPendingAcks
from txnframework_metadata.pending_acks.writer import Change, Draft
from txnframework_metadata.plugin import txnframework_buffers, txnframework_coordinators
from txnframework_metadata.records.headers import Header, read_header
from txnframework_metadata.records.operations import forget
from txnframework_metadata.records.views import StoredOperation, acks_of

Verdicts = tuple[list[Verdict], list[StoredOperation]]


class Misjudges(MetadataPendingAcks):
    """Reads correctly, and decides wrongly."""

    async def _look(self, requests: Sequence[AckRequest], stored: Sequence[StoredOperation]) -> Verdicts:
        verdicts, doubles = await super()._look(requests, stored)
        misjudged = [await self.verdict(one, found) for one, found in zip(requests, verdicts, strict=True)]
        return misjudged, doubles

    async def verdict(self, request: AckRequest, verdict: Verdict) -> Verdict:
        raise NotImplementedError


# -- adding -------------------------------------------------------------------------------------------


class TakesKeywords(MetadataPendingAcks):
    """Has other parameters than the role."""

    async def settle(self, *, ended: Transaction) -> None:  # type: ignore[override]
        await super().settle(ended)


class AppliesAtOnce(MetadataPendingAcks):
    """Moves the cursor before the decision."""

    async def add(self, request: AckRequest) -> None:
        await super().add(request)
        await self._cursor.apply(request.incarnation, request.acks, None)


class LooksAtNothing(MetadataPendingAcks):
    """Records every acknowledgment without a check."""

    async def _look(self, requests: Sequence[AckRequest], stored: Sequence[StoredOperation]) -> Verdicts:
        return [Verdict()] * len(requests), []


class LooksFirst(MetadataPendingAcks):
    """Reads before it puts."""

    async def _record(self, requests: list[AckRequest]) -> Answers:
        self.__dict__["found"] = await super()._look(requests, [])
        return await super()._record(requests)

    async def _look(self, requests: Sequence[AckRequest], stored: Sequence[StoredOperation]) -> Verdicts:
        found: Verdicts = self.__dict__["found"]
        return found


class LooksAtTheCursorFirst(MetadataPendingAcks):
    """Reads the cursor before the operations."""

    async def _look(self, requests: Sequence[AckRequest], stored: Sequence[StoredOperation]) -> Verdicts:
        cursor = await self._cursor.load()

        class Before:
            async def load(self) -> Cursor:
                return cursor

        inner, self._cursor = self._cursor, Before()  # type: ignore[assignment]
        try:
            return await super()._look(requests, stored)
        finally:
            self._cursor = inner


class SeesNoCursor(Misjudges):
    """Checks pending acknowledgments only."""

    async def verdict(self, request: AckRequest, verdict: Verdict) -> Verdict:
        return verdict if verdict.other or "earlier" in verdict.conflict or verdict.repeated else Verdict()


class SeesNoCommitted(Misjudges):
    """Treats acknowledgments of ended transactions as gone."""

    async def verdict(self, request: AckRequest, verdict: Verdict) -> Verdict:
        unseen = verdict.conflict and not verdict.other and not (await self._cursor.load()).deleted
        return Verdict() if unseen else verdict


class LeavesItsRecord(MetadataPendingAcks):
    """Refuses, and leaves its own record."""

    async def _take_back(
        self, header: Header, changes: Sequence[Change], kept: Collection[int]
    ) -> list[StoredOperation]:
        return [change.now for change in changes]


class NamesNobody(MetadataPendingAcks):
    """Does not name the conflicting transaction."""

    async def add(self, request: AckRequest) -> None:
        try:
            await super().add(request)
        except TransactionConflict as error:
            raise TransactionConflict(error.txn_id, error.reason) from error


class RefusesToRepeat(Misjudges):
    """Reports a repetition as a conflict."""

    async def verdict(self, request: AckRequest, verdict: Verdict) -> Verdict:
        return Verdict("it is held") if verdict.repeated else verdict


class RepeatsForGood(Misjudges):
    """Applies repeated acknowledgments at once."""

    async def verdict(self, request: AckRequest, verdict: Verdict) -> Verdict:
        if verdict.repeated:
            await self._cursor.apply(request.incarnation, request.acks, None)
        return verdict


class AddsToAnything(MetadataPendingAcks):
    """Records in ended and unknown transactions."""

    async def add(self, request: AckRequest) -> None:
        with contextlib.suppress(TransactionNotFound):
            header = await read_header(self._store, request.branch.txn_id)
            if header is None or header.transaction.state is not State.OPEN:
                return
            await super().add(request)


class AddsForAnybody(MetadataPendingAcks):
    """Does not check the principal."""

    async def add(self, request: AckRequest) -> None:
        header = await read_header(self._store, request.branch.txn_id)
        owner = "" if header is None else header.transaction.principal
        await super().add(replace(request, principal=owner or request.principal))


class IgnoresIncarnations(MetadataPendingAcks):
    """Accepts messages received before a seek."""

    async def add(self, request: AckRequest) -> None:
        await super().add(replace(request, incarnation=(await self._cursor.load()).incarnation))

    async def _settle_operations(self, ended: Transaction, operations: Sequence[StoredOperation]) -> None:
        now = (await self._cursor.load()).incarnation
        changed = [_with(one, incarnation=now) for one in operations]
        await super()._settle_operations(ended, changed)


def _with(operation: StoredOperation, **changes: Any) -> StoredOperation:
    document = operation.document
    assert isinstance(document, AckOperation)
    return msgspec.structs.replace(operation, document=msgspec.structs.replace(document, **changes))


class MixesSubscriptions(MetadataPendingAcks):
    """Settles for every subscription of the segment."""

    def __init__(self, context: SubscriptionContext) -> None:
        super().__init__(context)

        class OfAll(AckRecords):
            def has(self, operation: StoredOperation) -> bool:
                return isinstance(operation.document, AckOperation)

        self._records = OfAll(context.store, self.segment, self.subscription, 100)


class KeepsTheFirstRecord(MetadataPendingAcks):
    """Records only what fits into one record."""

    def _drafts(self, requests: Sequence[AckRequest]) -> list[Draft]:
        return super()._drafts(requests)[:1]


# -- kinds --------------------------------------------------------------------------------------------


class KnowsNoIndexes(MetadataPendingAcks):
    """Treats a part of an entry as the whole entry."""

    async def add(self, request: AckRequest) -> None:
        whole = tuple(Ack(ack.position.entry, 1, None, ack.cumulative) for ack in request.acks)
        await super().add(replace(request, acks=whole))


class KnowsOnlyEqualIndexes(Misjudges):
    """Treats different parts of an entry as disjoint, even if they overlap."""

    async def verdict(self, request: AckRequest, verdict: Verdict) -> Verdict:
        partial = all(ack.batch_indexes is not None for ack in request.acks)
        return Verdict() if verdict.conflict and partial else verdict


class ForgetsTheLastIndex(MetadataPendingAcks):
    """Does not finish an entry whose messages are all finished."""

    async def _settle_operations(self, ended: Transaction, operations: Sequence[StoredOperation]) -> None:
        kept = [one for one in operations if not _names(one, 3)]
        await super()._settle_operations(ended, kept or operations[:0])
        await forget(self._store, operations)


def _names(operation: StoredOperation, index: int) -> bool:
    document = operation.document
    assert isinstance(document, AckOperation)
    return any(ack.batch_indexes and index in ack.batch_indexes for ack in acks_of(document))


class IgnoresIndexesInPositions(MetadataPendingAcks):
    """Treats the position of a message as that of its entry."""

    async def add(self, request: AckRequest) -> None:
        acks = tuple(replace(ack, position=ack.position.entry) for ack in request.acks)
        await super().add(replace(request, acks=acks))


class MovesBack(Misjudges):
    """Accepts a lower cumulative acknowledgment."""

    async def verdict(self, request: AckRequest, verdict: Verdict) -> Verdict:
        return Verdict() if "behind an earlier one" in verdict.conflict else verdict


class ComparesLikeWithLike(Misjudges):
    """Never compares cumulative acknowledgments with single ones."""

    async def verdict(self, request: AckRequest, verdict: Verdict) -> Verdict:
        mixed = verdict.other is not None and not await self._same_kind(request, verdict)
        return Verdict() if mixed else verdict

    async def _same_kind(self, request: AckRequest, verdict: Verdict) -> bool:
        kinds = {ack.cumulative for ack in request.acks}
        operations = (await self._records.by_txn()).get(verdict.other, [])  # type: ignore[arg-type]
        documents = [one.document for one in operations]
        return any(isinstance(one, AckOperation) and one.cumulative in kinds for one in documents)


class SharesCumulatives(Misjudges):
    """Lets two transactions hold cumulative acknowledgments."""

    async def verdict(self, request: AckRequest, verdict: Verdict) -> Verdict:
        both = verdict.other is not None and all(ack.cumulative for ack in request.acks)
        return Verdict() if both else verdict


class StopsAtDoneOnes(Misjudges):
    """Refuses a cumulative acknowledgment over any finished message."""

    async def verdict(self, request: AckRequest, verdict: Verdict) -> Verdict:
        for txn_id in await self._records.by_txn():
            header = await read_header(self._store, txn_id)
            ended = header is not None and header.transaction.state is State.COMMITTED
            if ended and request.acks[0].cumulative:
                return Verdict("something is done below it")
        return verdict


class TakesTheLastForTheEntry(Misjudges):
    """Checks the whole entry where the last message of its batch is named."""

    async def verdict(self, request: AckRequest, verdict: Verdict) -> Verdict:
        of_batch = all(ack.cumulative and ack.batch_size > 1 and ack.position.batch_index < 0 for ack in request.acks)
        return Verdict() if of_batch and "already" in verdict.conflict else verdict


class TakesCoveredForRepeated(Misjudges):
    """Treats any message below an own cumulative acknowledgment as acknowledged."""

    async def verdict(self, request: AckRequest, verdict: Verdict) -> Verdict:
        own = (await self._records.by_txn()).get(request.branch.txn_id, [])
        covered = any(isinstance(one.document, AckOperation) and one.document.cumulative for one in own)
        single = not any(ack.cumulative for ack in request.acks)
        return Verdict(repeated=True) if covered and single else verdict


class IgnoresReceived(MetadataPendingAcks):
    """Skips finished messages even if the consumer had received them."""

    async def add(self, request: AckRequest) -> None:
        await super().add(replace(request, received=()))


class ChecksReceivedFirst(MetadataPendingAcks):
    """Checks received messages before the put, and not afterwards."""

    async def add(self, request: AckRequest) -> None:
        await self.recover()
        cursor = await self._cursor.load()
        if any(unite(cursor, (one,)) == cursor for one in request.received):
            raise TransactionConflict(request.branch.txn_id, "something that was received is done")
        await super().add(replace(request, received=()))


class RefusesItsOwn(Misjudges):
    """Refuses a cumulative acknowledgment over the transaction's own acks."""

    async def verdict(self, request: AckRequest, verdict: Verdict) -> Verdict:
        own = (await self._records.by_txn()).get(request.branch.txn_id, [])
        held = {ack.position for one in own for ack in one.acks if not ack.cumulative}
        return Verdict("it is held") if any(one.position in held for one in request.received) else verdict


class AppliesOneKind(MetadataPendingAcks):
    """Ignores single acknowledgments if there are cumulative ones."""

    async def _settle_operations(self, ended: Transaction, operations: Sequence[StoredOperation]) -> None:
        cumulative = [one for one in operations if isinstance(one.document, AckOperation) and one.document.cumulative]
        await super()._settle_operations(ended, cumulative or operations)
        await forget(self._store, operations)


# -- settling and recovering --------------------------------------------------------------------------


class AppliesWhatWasAborted(MetadataPendingAcks):
    """Applies acknowledgments without reading the header."""

    async def _settle_operations(self, ended: Transaction, operations: Sequence[StoredOperation]) -> None:
        branches = frozenset(_with(one).document.branch for one in operations)  # type: ignore[union-attr]
        await super()._settle_operations(
            msgspec.structs.replace(ended, state=State.COMMITTED, branches=branches), operations
        )


class ForgetsFirst(MetadataPendingAcks):
    """Deletes the record before the cursor has moved."""

    async def _settle_operations(self, ended: Transaction, operations: Sequence[StoredOperation]) -> None:
        await forget(self._store, operations)
        await super()._settle_operations(ended, operations)


class ForgetsEverybody(MetadataPendingAcks):
    """Deletes the records of other transactions."""

    async def settle(self, ended: Transaction) -> None:
        await super().settle(ended)
        for operations in (await self._records.by_txn()).values():
            for one in operations:
                await self._store.delete(one.record.key, Expect.ANY)


class SettlesOnce(MetadataPendingAcks):
    """Fails when there is nothing to settle."""

    async def settle(self, ended: Transaction) -> None:
        if not any(self._records.has(one) for one in (await self._records.by_txn()).get(ended.txn_id, [])):
            raise Unavailable("nothing to settle")
        await super().settle(ended)


class FailsQuietly(MetadataPendingAcks):
    """Treats a lost reply as success, and deletes the record."""

    async def _settle_operations(self, ended: Transaction, operations: Sequence[StoredOperation]) -> None:
        try:
            await super()._settle_operations(ended, operations)
        except OutcomeUnknown:
            raise
        except Unavailable:
            for one in operations:
                await self._store.delete(one.record.key, Expect.ANY)


class ForgetsOnDoubt(MetadataPendingAcks):
    """Deletes the record after a lost reply."""

    async def settle(self, ended: Transaction) -> None:
        operations = (await self._records.by_txn()).get(ended.txn_id, [])
        try:
            for one in operations:
                await self._store.delete(one.record.key, Expect.ANY)
            await self._settle_operations(ended, operations)
        except OutcomeUnknown:
            return


class DropsProcessed(MetadataPendingAcks):
    """Does not report acknowledged messages of a batch to the cursor."""

    async def add(self, request: AckRequest) -> None:
        await super().add(replace(request, processed=None))


class NeverCloses(MetadataPendingAcks):
    """Accepts calls after the close."""

    async def close(self) -> None:
        pass


class RemembersNothing(MetadataPendingAcks):
    """Recovers without reporting pending acknowledgments."""

    async def recover(self) -> PendingAcks:
        return replace(await super().recover(), open={})


class ImaginesThings(MetadataPendingAcks):
    """Reports settled transactions where there were none."""

    async def recover(self) -> PendingAcks:
        found = await super().recover()
        before = self.__dict__.setdefault("before", found)
        return replace(found, ended=before.ended or {None: State.ABORTED})  # type: ignore[dict-item]


class SettlesLater(MetadataPendingAcks):
    """Leaves ended transactions to others."""

    async def recover(self) -> PendingAcks:
        found = (await self._records.by_txn()).keys()
        headers = {one: await read_header(self._store, one) for one in found}
        still = {one for one, header in headers.items() if _is_open(header)}
        return PendingAcks(dict.fromkeys(still, ()), {})


def _is_open(header: Header | None) -> bool:
    return header is not None and header.transaction.state is State.OPEN


class BelievesHeaders(MetadataPendingAcks):
    """Fails when a header is missing."""

    async def recover(self) -> PendingAcks:
        for txn_id in await self._records.by_txn():
            if await read_header(self._store, txn_id) is None:
                raise TransactionNotFound(txn_id)
        return await super().recover()


class ForgetsWhatTimedOut(MetadataPendingAcks):
    """Reports acknowledgments of timed-out transactions as pending."""

    async def _look(self, requests: Sequence[AckRequest], stored: Sequence[StoredOperation]) -> Verdicts:
        mine = {one.record.key.path for one in stored}
        for operations in (await self._records.by_txn()).values():
            if any(one.record.key.path not in mine for one in operations):
                return [Verdict("something is there")] * len(requests), []
        return await super()._look(requests, stored)


# -- between two steps --------------------------------------------------------------------------------


class CallsUnknownRefused(MetadataPendingAcks):
    """Reports a failed request as refused although the outcome is unknown."""

    async def add(self, request: AckRequest) -> None:
        try:
            await super().add(request)
        except (OutcomeUnknown, Closed) as error:
            raise TransactionConflict(request.branch.txn_id, "failed") from error


class KeepsWhatFailed(MetadataPendingAcks):
    """Reports a failure as refused, and leaves its record."""

    async def _take_back(
        self, header: Header, changes: Sequence[Change], kept: Collection[int]
    ) -> list[StoredOperation]:
        return await super()._take_back(header, changes, kept) if isinstance(kept, set) else []


class RepeatsInVain(MetadataPendingAcks):
    """Refuses the repetition of an acknowledgment that may have been recorded."""

    async def add(self, request: AckRequest) -> None:
        held = (await self._records.by_txn()).get(request.branch.txn_id)
        if held and self.__dict__.get("lost"):
            raise TransactionConflict(request.branch.txn_id, "recorded")
        await super().add(request)
        self.__dict__["lost"] = True


class HoldsByItself(MetadataPendingAcks):
    """Adds a hold that ends with the request, unless the process is killed."""

    async def add(self, request: AckRequest) -> None:
        key = msgspec.structs.replace(operations_prefix(request.branch.txn_id), path="/hold", partition="")
        if await self._store.get(key) is not None:
            raise TransactionConflict(request.branch.txn_id, "held")
        from txnframework.model import Put

        await self._store.put(Put(key, b"", Expect.ABSENT))
        try:
            await super().add(request)
        finally:
            with contextlib.suppress(Unavailable, OutcomeUnknown):
                await self._store.delete(key, Expect.ANY)


# -- growing ------------------------------------------------------------------------------------------


class PutsARecordEach(MetadataPendingAcks):
    """Writes a record for each call."""

    def __init__(self, context: SubscriptionContext) -> None:
        super().__init__(context)
        self._groups = CallGroups(self._record, ack_group_rules(0))

    def _drafts(self, requests: Sequence[AckRequest]) -> list[Draft]:
        return [replace(one, before=None) for one in super()._drafts(requests)]


class Overwrites(MetadataPendingAcks):
    """Overwrites the existing record without its content."""

    def _drafts(self, requests: Sequence[AckRequest]) -> list[Draft]:
        planned = super()._drafts(requests)
        return [one if one.before is None else replace(one, before=_with(one.before, acks=[])) for one in planned]


class MixesBranches(MetadataPendingAcks):
    """Writes into the record of any branch."""

    def __init__(self, context: SubscriptionContext) -> None:
        super().__init__(context)

        class OfAll(ConfirmedAcks):
            def take_growing(self, branch: Branch, incarnation: int, cumulative: bool) -> StoredOperation | None:
                return super().take_growing(replace(branch, number=0), incarnation, cumulative)

            def note(self, operation: StoredOperation, *, may_grow: bool) -> None:
                super().note(_with(operation, branch=0), may_grow=may_grow)

        self._confirmed = OfAll(100)


class FailsTogether(MetadataPendingAcks):
    """Refuses all concurrent calls for the conflict of one."""

    async def _look(self, requests: Sequence[AckRequest], stored: Sequence[StoredOperation]) -> Verdicts:
        verdicts, doubles = await super()._look(requests, stored)
        worst = next((one for one in verdicts if one.conflict), None)
        return (verdicts if worst is None else [worst] * len(verdicts)), doubles


class StopsForOne(MetadataPendingAcks):
    """Stops all concurrent calls when one caller is cancelled."""

    async def add(self, request: AckRequest) -> None:
        try:
            await super().add(request)
        except asyncio.CancelledError:
            await self._groups.close()
            raise


class SettlesWhatItRead(MetadataPendingAcks):
    """Recovers from records that it read before the header."""

    async def recover(self) -> PendingAcks:
        for txn_id, operations in (await self._records.by_txn()).items():
            header = await read_header(self._store, txn_id)
            if header is not None and header.transaction.state is not State.OPEN:
                await self._settle_operations(header.transaction, operations)
        return await super().recover()


class ForgetsWhatItDidNotRead(SettlesWhatItRead):
    """Deletes records even if they have changed since the read."""

    async def _settle_operations(self, ended: Transaction, operations: Sequence[StoredOperation]) -> None:
        await super()._settle_operations(ended, operations)
        for one in operations:
            await self._store.delete(one.record.key, Expect.ANY)


class RefusesWhatTookEffect(MetadataPendingAcks):
    """Reports a refusal without checking that the record was withdrawn."""

    async def _take_back(
        self, header: Header, changes: Sequence[Change], kept: Collection[int]
    ) -> list[StoredOperation]:
        with contextlib.suppress(OutcomeUnknown):
            return await super()._take_back(header, changes, kept)
        return []


class _UncheckedStore:
    """A store that checks nothing in a batch."""

    def __init__(self, store: IMetadataStore) -> None:
        self._store = store
        directlyProvides(self, *providedBy(store).flattened())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def apply(self, batch: Step) -> tuple[Record, ...]:
        return await self._store.apply(msgspec.structs.replace(batch, checks=()))


class PutsWithoutACheck(MetadataPendingAcks):
    """Puts a record without checking its transaction."""

    def __init__(self, context: SubscriptionContext) -> None:
        super().__init__(replace(context, store=IMetadataStore(_UncheckedStore(context.store))))


CASES: list[tuple[type[MetadataPendingAcks], str]] = [
    (TakesKeywords, "test_keeps_the_interface"),
    (AppliesAtOnce, "test_takes_effect_with_the_commit"),
    (AppliesWhatWasAborted, "test_abort_gives_back"),
    (LooksAtNothing, "test_conflict"),
    (LeavesItsRecord, "test_conflict"),
    (NamesNobody, "test_conflict"),
    (SeesNoCommitted, "test_committed_counts_before_it_is_settled"),
    (AppliesWhatWasAborted, "test_branch_that_does_not_count"),
    (RefusesToRepeat, "test_same_again"),
    (RepeatsForGood, "test_repeated_and_aborted"),
    (AddsToAnything, "test_ended_transaction"),
    (AddsToAnything, "test_unknown_transaction"),
    (AddsForAnybody, "test_principals"),
    (SeesNoCursor, "test_cursor_has_passed"),
    (IgnoresIncarnations, "test_other_incarnation"),
    (MixesSubscriptions, "test_two_subscriptions"),
    (LooksAtNothing, "test_one_of_many_wins"),
    (KeepsTheFirstRecord, "test_many_positions"),
    (KnowsNoIndexes, "test_disjoint_indexes"),
    (KnowsOnlyEqualIndexes, "test_overlapping_indexes"),
    (IgnoresIndexesInPositions, "test_index_in_the_position"),
    (ForgetsTheLastIndex, "test_all_indexes"),
    (RefusesToRepeat, "test_same_indexes_again"),
    (MovesBack, "test_moves_forward_only"),
    (RefusesToRepeat, "test_moves_forward_only"),
    (SharesCumulatives, "test_one_transaction_at_a_time"),
    (SeesNoCommitted, "test_behind_a_committed_one"),
    (ComparesLikeWithLike, "test_over_pending_single_ones"),
    (ComparesLikeWithLike, "test_under_a_pending_one"),
    (StopsAtDoneOnes, "test_over_committed_single_ones"),
    (TakesTheLastForTheEntry, "test_last_of_a_batch"),
    (TakesCoveredForRepeated, "test_named_under_an_own_cumulative_one"),
    (IgnoresReceived, "test_over_received_ones"),
    (RefusesItsOwn, "test_over_received_ones_of_its_own"),
    (IgnoresReceived, "test_received_ones_are_done_meanwhile"),
    (ChecksReceivedFirst, "test_received_ones_are_done_meanwhile"),
    (AppliesOneKind, "test_both_kinds"),
    (IgnoresIndexesInPositions, "test_in_mid_batch"),
    (AppliesWhatWasAborted, "test_in_any_order"),
    (SettlesOnce, "test_in_any_order"),
    (ForgetsEverybody, "test_one_does_not_give_back_anothers"),
    (ForgetsFirst, "test_repeated_after_a_failure"),
    (FailsQuietly, "test_repeated_after_a_failure"),
    (ForgetsFirst, "test_killed_while_settling"),
    (ForgetsOnDoubt, "test_lost_reply_while_settling"),
    (IgnoresIncarnations, "test_other_incarnation_is_dropped"),
    (DropsProcessed, "test_processed_range"),
    (NeverCloses, "test_closed"),
    (ImaginesThings, "test_nothing"),
    (RemembersNothing, "test_holds_of_open_transactions"),
    (SettlesLater, "test_restart"),
    (ForgetsFirst, "test_killed_while_recovering"),
    (BelievesHeaders, "test_recovering_while_others_settle"),
    (ForgetsWhatTimedOut, "test_timed_out_transaction_gives_back"),
    (LooksFirst, "test_two_processes"),
    (PutsWithoutACheck, "test_killed_after_a_late_put"),
    (LooksAtTheCursorFirst, "test_holder_settles_meanwhile"),
    (AppliesAtOnce, "test_transaction_ends_meanwhile"),
    (HoldsByItself, "test_killed_while_adding"),
    (RepeatsInVain, "test_lost_reply_while_adding"),
    (KeepsWhatFailed, "test_refused_step_fails_the_add"),
    (CallsUnknownRefused, "test_cut_off_while_adding"),
    (IgnoresIncarnations, "test_seek_meanwhile"),
    (PutsARecordEach, "test_records_do_not_grow_with_calls"),
    (Overwrites, "test_records_do_not_grow_with_calls"),
    (MixesBranches, "test_branches_grow_apart"),
    (Overwrites, "test_parts_of_entries_in_turns"),
    (FailsTogether, "test_each_its_own_conflict"),
    (StopsForOne, "test_one_cancelled_of_many"),
    (Overwrites, "test_more_with_a_lost_reply"),
    (Overwrites, "test_killed_while_adding_more"),
    (ForgetsWhatItDidNotRead, "test_more_while_others_recover"),
    (SettlesWhatItRead, "test_refused_while_others_recover"),
    (RefusesWhatTookEffect, "test_refused_is_not_recorded"),
]


def harness_of(broken: type[MetadataPendingAcks]) -> type[WorldHarness]:
    """Return a harness whose processes have a pending-ack store of this class."""

    async def open_store(context: SubscriptionContext) -> IPendingAckStore:
        return broken(context)

    class Broken(WorldHarness):
        patience_s = 0.2
        stores = MemoryMetadataHarness
        ledgers = MemoryLedgerHarness
        (coordinator,) = txnframework_coordinators()
        (buffer,) = txnframework_buffers()
        pending_acks = Provider("broken", open_store, broken)

    return Broken


SEALING = {
    "test_sealed",
    "test_sealed_before_the_first_acknowledgment",
    "test_ended_after_the_seal",
    "test_killed_while_sealing",
}
"""Stores of this family are not sealed. The log family's ``test_broken_migrations.py`` breaks these rules."""


@pytest.mark.parametrize(("broken", "name"), CASES)
def test_broken_pending_acks(broken: type[MetadataPendingAcks], name: str, must_fail: Callable[..., None]) -> None:
    """A pending-ack store that breaks the rule fails its test."""
    must_fail(PendingAckSuite, harness_of(broken), name)


def test_every_test_has_teeth(every_test_has_teeth: Callable[..., None]) -> None:
    """Each test of the suite fails on some broken store."""
    every_test_has_teeth(PendingAckSuite, {name for _, name in CASES}, SEALING)
