"""Applications: batches that several processes write together, and a new run that takes over."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from crash_scenario import BILLING, INVOICES, ORDERS, Scenario, patiently

from txnframework import Client, Consumer, Message, TxnID
from txnframework.errors import Fenced, InvalidTransactionState, TransactionConflict, TransactionNotFound
from txnframework.model import BatchID, Position, SourceRange
from txnframework.model.transactions import Action, End

APPLICATION = "pipeline"
QUERY = "query"
FIRST_RUN, NEXT_RUN = "run 1", "run 2"
VERSIONS = (1, 2)
TIMEOUT_MS = 20_000
TOO_LATE = (Fenced, TransactionConflict, TransactionNotFound)
"""Errors that a task of a finished run receives."""


def ranges_of(version: int) -> tuple[SourceRange, ...]:
    """Return what a batch says that it consumed."""
    segment = "segment://public/default/orders/0000-ffff-0"
    start, end = Position(0, version - 2), Position(0, version - 1)
    return (SourceRange(ORDERS, BILLING, {segment: start}, {segment: end}),)


class Batches(Scenario):
    """Two batches, one after the other, in each of which a driver and the bystander, its executor, write at once.

    The first one acknowledges its input. After the driver's death, a new run does what is not yet committed, and fences
    the earlier run.
    """

    subscriptions: ClassVar[tuple[tuple[str, str], ...]] = ((ORDERS, BILLING),)
    composed = True
    consumer: Consumer | None = None
    received: tuple[Message, ...] = ()
    is_taken_over = False

    async def arrange(self, client: Client) -> None:
        self.executing: list[asyncio.Task[tuple[TxnID, int]]] = []
        if self.subscriptions:
            await self.fill(ORDERS, b"0", b"1")
            self.consumer, self.received = await self.receive(client, ORDERS, 2)
        await (await _coordinator(client)).claim(APPLICATION, FIRST_RUN)

    async def operate(self, client: Client) -> None:
        await self.run(client, FIRST_RUN)

    async def carry_on(self, client: Client, failed: bool) -> None:
        if self.consumer is not None:
            await self.consumer.close()
        if failed:
            await self.resume(client)

    async def resume(self, client: Client) -> None:
        self.is_taken_over = True
        known = await (await _coordinator(client)).claim(APPLICATION, NEXT_RUN)
        if self.subscriptions and not known.committed:
            self.consumer, self.received = await patiently(client, lambda: self.receive(client, ORDERS, 2))
            async with self.consumer:
                await self.run(client, NEXT_RUN)
        else:
            await self.run(client, NEXT_RUN)

    def check(self) -> None:
        self.world.machines["bystander"].do(self.check_record())

    async def check_record(self) -> None:
        """Each batch was committed once, with its ranges, and the first run is over if another one came."""
        for outlived in await asyncio.gather(*self.executing, return_exceptions=True):
            assert not isinstance(outlived, BaseException) or isinstance(outlived, TOO_LATE), outlived
        coordinator = await _coordinator(self.bystander)
        found = await coordinator.application(APPLICATION)
        committed = [(one.query, one.version, one.ranges) for one in found.committed]
        assert committed == [(QUERY, version, ranges_of(version)) for version in VERSIONS], committed
        if self.is_taken_over:
            assert (found.run, found.past_runs) == (NEXT_RUN, (FIRST_RUN,))
            for call in (
                coordinator.claim(APPLICATION, FIRST_RUN),
                coordinator.begin_batch(BatchID(APPLICATION, QUERY, FIRST_RUN, 3), TIMEOUT_MS),
            ):
                try:
                    await call
                except Fenced:
                    continue
                raise AssertionError(f"{FIRST_RUN} is over, and may go on")

    # -- one run --------------------------------------------------------------------------------------

    async def run(self, client: Client, run: str) -> None:
        """Do the batches that are not committed yet."""
        known = await (await _coordinator(client)).claim(APPLICATION, run)
        done = {one.version for one in known.committed}
        for version in VERSIONS:
            if version not in done:
                await self.run_batch(client, BatchID(APPLICATION, QUERY, run, version))

    async def run_batch(self, client: Client, batch: BatchID) -> None:
        """Do what a driver does: write, hear from the executor, look whether this run may go on, commit."""
        coordinator = await _coordinator(client)
        executing = self.world.machines["bystander"].spawn(self.execute(batch))
        self.executing.append(executing)
        began = await coordinator.begin_batch(batch, TIMEOUT_MS)
        async with client.join(began.txn_id) as part:
            async with await client.producer(INVOICES) as producer:
                await self.story.send(producer, b"%d by the driver" % batch.version, txn=part)
            if self.consumer is not None and batch.version == VERSIONS[0]:
                await self.story.ack(self.consumer, *self.received, txn=part)
        executed, branch = await executing
        assert executed == began.txn_id, "two processes of one run began a batch in two transactions"
        await coordinator.finish_batch(batch, began.txn_id, ranges_of(batch.version))
        current = await coordinator.application(APPLICATION)
        if (current.run, current.txn_id) != (batch.run, began.txn_id):
            raise Fenced(f"application {APPLICATION}", batch.run)
        end = End(began.txn_id, Action.COMMIT, branches=frozenset({0, part.branch, branch}))
        self.story.promise(began.txn_id, (await coordinator.end(end)).state)

    async def execute(self, batch: BatchID) -> tuple[TxnID, int]:
        """Do what an executor does: find the batch's transaction, or begin it; write; report."""
        began = await (await _coordinator(self.bystander)).begin_batch(batch, TIMEOUT_MS)
        async with self.bystander.join(began.txn_id) as part, await self.bystander.producer(INVOICES) as producer:
            await self.story.send(producer, b"%d by the executor" % batch.version, txn=part)
        return began.txn_id, part.branch


class BatchesTakenOver(Batches):
    """A new run claims the application while the former one works: what that one had not committed is done again."""

    subscriptions = ()
    rounds_max = 200
    taking: asyncio.Task[None] | None = None

    async def operate(self, client: Client) -> None:
        self.taking = self.world.machines["bystander"].spawn(self.take_over())
        try:
            await self.run(client, FIRST_RUN)
        except (*TOO_LATE, InvalidTransactionState):
            return

    async def take_over(self) -> None:
        await self.world.loop.pause(self.rounds_max)
        self.is_taken_over = True
        await self.run(self.bystander, NEXT_RUN)

    async def carry_on(self, client: Client, failed: bool) -> None:
        await self.resume(client)

    async def resume(self, client: Client) -> None:
        if self.taking is None:
            await super().resume(client)
        else:
            await self.taking


async def _coordinator(client: Client) -> Any:
    return await client.host.coordinator()


RACES = (BatchesTakenOver,)
SCENARIOS = (Batches, *RACES)
