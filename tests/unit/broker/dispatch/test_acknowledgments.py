from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from txnframework.broker.dispatch.ack_progress import AckProgress
from txnframework.broker.dispatch.acknowledgments import AckRecorder
from txnframework.broker.dispatch.cursor_acks import CursorAckWriter
from txnframework.broker.dispatch.deliveries import Deliveries, HeldMessage
from txnframework.broker.dispatch.open_acks import OpenAcks
from txnframework.errors import OutcomeUnknown, TransactionConflict, TxnFrameworkError, Unavailable
from txnframework.model import Ack, AckRequest, Branch, PendingAck, Position, State, TxnID
from txnframework.model.cursor import Cursor
from txnframework.model.entries import EntryMessage
from txnframework.testing.clock import VirtualEnvironment, run_ready

CURSOR = Cursor(1, Position(0, -1))
EARLIER, HELD, FREE = Position(0, 0), Position(1, 0, 0), Position(1, 1, 0)
TXN = TxnID(0, 7)


class Owner:
    """The interface that a dispatch offers to its acknowledgments."""

    def __init__(self, deliveries: Deliveries) -> None:
        self.deliveries = deliveries
        self.progress = AckProgress(deliveries)
        self.incarnation = 1

    def is_attached(self, consumer_id: int) -> bool:
        return True

    def remove_finished(self, done: Iterable[HeldMessage]) -> None:
        self.deliveries.forget(done)

    async def refresh(self) -> None:
        raise NotImplementedError

    def request_refresh(self) -> None:
        raise NotImplementedError

    def expect_end(self, txn_id: TxnID) -> None:
        return None

    async def load_outcome(self, branch: Branch) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("ended", [True, False])
async def test_a_plain_acknowledgment_is_dropped_only_if_the_transaction_still_holds_the_message(ended: bool) -> None:
    """The last read is not enough: the transaction may have been aborted since, without a notification."""
    deliveries = Deliveries()
    holding = OpenAcks({TXN: (PendingAck(Branch(TXN), Ack(HELD.entry), State.OPEN, 1),)}, 1)
    for position in (HELD, FREE):
        deliveries.read(HeldMessage(position, 1, EntryMessage(None, b"", (), 0, 0), "p", None), CURSOR, holding)
    written: list[Position] = []
    looks = 0

    class Cursors:
        async def apply(self, incarnation: int, acks: tuple[Ack, ...], processed: object) -> bool:
            written.extend(ack.position for ack in acks)
            return True

    class Dispatch(Owner):
        async def refresh(self) -> None:
            nonlocal looks
            looks += 1
            self.progress.reconcile(CURSOR, OpenAcks({}, 1) if ended else holding, self.progress.begin_refresh())

    cursor: Any = Cursors()
    unused: Any = None
    writer = CursorAckWriter(cursor, VirtualEnvironment(), 0)
    owner = Dispatch(deliveries)
    acknowledging = AckRecorder(owner, owner.progress, writer, unused)
    await acknowledging.single(((FREE, 1),), 1, None, "", lambda: EARLIER)
    assert (written, looks) == ([FREE.entry], 0)
    await acknowledging.single(((HELD, 1),), 1, None, "", lambda: EARLIER)
    assert (written, looks) == ([FREE.entry, HELD.entry] if ended else [FREE.entry], 1)


@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("holder", [None, Branch(TXN)])
async def test_what_was_not_read_here_is_recorded_and_looked_at(holder: Branch | None, away: bool) -> None:
    """An earlier dispatch delivered the message; with outdated reads, it would be delivered again."""
    deliveries = Deliveries()
    deliveries.read(HeldMessage(FREE, 1, EntryMessage(None, b"", (), 0, 0), "p", None), CURSOR, OpenAcks({}, 1))
    steps: list[object] = []
    unread = Position(2, 0, 0)

    class Stores:
        async def apply(self, incarnation: int, acks: tuple[Ack, ...], processed: object) -> bool:
            steps.extend(ack.position for ack in acks)
            return True

        async def add(self, request: AckRequest) -> None:
            steps.extend(ack.position for ack in request.acks)

    class Dispatch(Owner):
        async def refresh(self) -> None:
            steps.append("look")
            if away:
                raise Unavailable("away")

    stores: Any = Stores()
    plain = CursorAckWriter(stores, VirtualEnvironment(), 0)
    owner = Dispatch(deliveries)
    acknowledging = AckRecorder(owner, owner.progress, plain, stores)
    asked = ((FREE, 1), (unread, 1))
    if away:
        with pytest.raises(OutcomeUnknown, match="it was acknowledged"):
            await acknowledging.single(asked, 1, holder, "", lambda: FREE.entry)
    else:
        await acknowledging.single(asked, 1, holder, "", lambda: FREE.entry)
    assert steps == [FREE.entry, unread.entry, "look"]


class OneMessage(Owner):
    """Acknowledgments of the message HELD, with stores that answer on request."""

    def __init__(self) -> None:
        super().__init__(Deliveries())
        self.pending = OpenAcks({}, 1)
        self.recorded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.written: list[Position] = []
        self.failures: list[TxnFrameworkError] = []
        self.looks = 0
        self.looks_asked_for = 0
        stores: Any = self
        self.acknowledging = AckRecorder(self, self.progress, CursorAckWriter(stores, VirtualEnvironment(), 0), stores)
        self.read()

    def read(self) -> None:
        self.deliveries.read(
            HeldMessage(HELD, 1, EntryMessage(None, b"", (), 0, 0), "p", None), CURSOR, OpenAcks({}, 1)
        )

    async def add(self, request: object) -> None:
        await self.recorded

    async def apply(self, incarnation: int, acks: tuple[Ack, ...], processed: object) -> bool:
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop()
        self.written.extend(ack.position for ack in acks)
        return True

    async def refresh(self) -> None:
        self.looks += 1
        self.progress.reconcile(CURSOR, self.pending, self.progress.begin_refresh())

    def request_refresh(self) -> None:
        self.looks_asked_for += 1

    def ack(self, holder: Branch | None = None) -> asyncio.Task[None]:
        return asyncio.ensure_future(self.acknowledging.single(((HELD, 1),), 1, holder, "", lambda: EARLIER))


@pytest.mark.parametrize("outcome", [None, TransactionConflict(TXN, "refused"), OutcomeUnknown("the reply was lost")])
@pytest.mark.parametrize("holds", [True, False])
async def test_a_plain_acknowledgment_waits_for_one_in_a_transaction(
    outcome: TxnFrameworkError | None, holds: bool
) -> None:
    """The plain ack is dropped only if the other one is recorded and its transaction still holds the message."""
    one = OneMessage()
    if holds:
        one.pending = OpenAcks({TXN: (PendingAck(Branch(TXN), Ack(HELD.entry), State.OPEN, 1),)}, 1)
    inside = one.ack(Branch(TXN))
    await run_ready()
    plain = one.ack()
    await run_ready()
    assert not plain.done()
    if outcome is None:
        one.recorded.set_result(None)
    else:
        one.recorded.set_exception(outcome)
    await asyncio.gather(inside, return_exceptions=True)
    await plain
    refused = isinstance(outcome, TransactionConflict)
    assert one.looks == (0 if refused else 1)
    assert one.written == ([] if holds and not refused else [HELD.entry])


async def test_a_plain_acknowledgment_is_confirmed_by_no_other_that_fails() -> None:
    """Of two concurrent acks, each returns when the message is finished; only the first one raises its own error."""
    one = OneMessage()
    one.failures.append(Unavailable("the store is away"))
    outcomes = await asyncio.gather(one.ack(), one.ack(), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Unavailable, type(None)]
    assert one.written == [HELD.entry]


@pytest.mark.parametrize("passed_over", [True, False])
async def test_a_plain_acknowledgment_that_fails_asks_for_the_look_that_passed_it_over(passed_over: bool) -> None:
    """The message is not delivered before another refresh, because the earlier one skipped it."""
    one = OneMessage()
    one.failures.append(Unavailable("the store is away"))
    plain = one.ack()
    await asyncio.sleep(0)
    assert one.progress.is_being_acknowledged(HELD)
    if passed_over:
        await one.refresh()
    with pytest.raises(Unavailable):
        await plain
    assert (one.looks_asked_for, len(one.deliveries.waiting)) == ((1, 0) if passed_over else (0, 1))


async def test_a_plain_acknowledgment_that_waits_while_someone_seeks_means_nothing_that_is_read_then() -> None:
    """After a seek, the message at the same position belongs to another incarnation, and is still unacknowledged."""
    one = OneMessage()
    inside = one.ack(Branch(TXN))
    await run_ready()
    plain = one.ack()
    await run_ready()
    one.deliveries.clear()
    one.incarnation = 2
    one.read()
    one.recorded.set_exception(TransactionConflict(TXN, "another incarnation"))
    await asyncio.gather(inside, return_exceptions=True)
    await plain
    assert one.written == []
    assert len(one.deliveries.waiting) == 1
