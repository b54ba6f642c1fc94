"""A subscription that passes to a consumer that stood by."""

from __future__ import annotations

import contextlib
from typing import ClassVar

from crash_scenario import BILLING, ORDERS, PATIENCE_MS, Scenario
from crash_story import Due

from txnframework import Client, Consumer
from txnframework.errors import InvalidTransactionState, ReceiveTimeout

MESSAGES = (b"0", b"1", b"2", b"3", b"4")
QUIET_MS = 5_000


class TakeOver(Scenario):
    """
    The owner receives, acknowledges in and outside of a transaction, commits and leaves; the bystander stands by.

    Whenever its turn comes, it is given what was not acknowledged, and nothing whose acknowledgment was confirmed.
    """

    topics: ClassVar = {ORDERS: 1}
    subscriptions = ((ORDERS, BILLING),)
    type = "failover"

    async def arrange(self, client: Client) -> None:
        await self.fill(ORDERS, *MESSAGES)
        self.owner = await self.join(client)
        self.txn = client.transaction()
        await self.txn.begin()
        self.standing_by = self.world.machines["bystander"].spawn(self.stand_by())
        self.is_owner_gone = False

    async def join(self, client: Client) -> Consumer:
        return await client.consumer(ORDERS, BILLING, type=self.type, start="earliest", stand_by=True)

    async def operate(self, client: Client) -> None:
        received = [await self.owner.receive(timeout_ms=PATIENCE_MS) for _ in range(4)]
        await self.story.ack(self.owner, received[1], txn=self.txn)
        await self.story.ack(self.owner, received[0])
        await self.story.ack(self.owner, received[2], txn=self.txn)
        await self.story.commit(self.txn)
        await self.owner.close()

    async def carry_on(self, client: Client, failed: bool) -> None:
        if failed:
            await self.owner.close()
            with contextlib.suppress(InvalidTransactionState):  # it is committed
                await client.abort(self.txn.id)
        await self.resume(client)

    async def resume(self, client: Client) -> None:
        self.is_owner_gone = True
        await self.standing_by

    def check(self) -> None:
        left = [value for value in MESSAGES if self.story.gone(ORDERS, BILLING, value) is Due.NEVER]
        assert not left, f"{left} did not come to the consumer that stood by"

    async def stand_by(self) -> None:
        """Take what is delivered, until the owner is gone and nothing more comes."""
        async with await self.join(self.bystander) as consumer:
            while True:
                try:
                    message = await consumer.receive(timeout_ms=QUIET_MS)
                except ReceiveTimeout:
                    if self.is_owner_gone:
                        return
                    continue
                if self.story.gone(ORDERS, BILLING, message.value) is Due.MUST:
                    self.story.violations.append(f"{message.value!r} was acknowledged, and is delivered again")
                await self.story.ack(consumer, message)


class TakeOverExclusive(TakeOver):
    """The same where the subscription has one consumer, in whichever process."""

    type = "exclusive"


SCENARIOS = (TakeOver, TakeOverExclusive)
