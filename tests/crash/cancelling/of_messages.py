"""Stories of producers, readers and transactions."""

from __future__ import annotations

import asyncio

from crash_story import Due

from cancelling.stage import FAMILIES, SUBSCRIPTION, Stage
from cancelling.stories import Story
from txnframework import JoinedTransaction, State
from txnframework.errors import (
    Closed,
    InvalidInput,
    InvalidTransactionState,
    TransactionConflict,
    TransactionHasFailedOperations,
)
from txnframework.model import OpenQuery

SEQUENCE = 2**62
ALL_OPEN = OpenQuery()


class Send(Story):
    covers = ("Producer.send",)
    sends = (b"new",)

    async def call(self, stage: Stage) -> None:
        await stage.producer.send(b"new", sequence_id=SEQUENCE)


class SendMany(Story):
    covers = ("Producer.send_many",)
    sends = (b"a", b"b", b"c")

    async def call(self, stage: Stage) -> None:
        await stage.producer.send_many(self.sends, sequence_id=SEQUENCE)


class TransactInAdvance(Story):
    """Operations that are known in advance: all or nothing, and the same sequence id is stored once."""

    covers = ("Client.transact",)
    sends = (b"new",)

    async def call(self, stage: Stage) -> None:
        await stage.client.transact(stage.producer.outgoing(b"new", sequence_id=SEQUENCE))


class TransactInOneStep(Story):
    """A message and an acknowledgment in one step: all or nothing, and a repetition has others."""

    covers = ("Client.transact",)
    families = ("metadata",)

    async def arrange(self, stage: Stage) -> None:
        await stage.join()

    async def call(self, stage: Stage) -> None:
        number = stage.notes["number"] = stage.notes.get("number", 0) + 1
        message, value = stage.messages[number], b"in-%d" % number
        stage.sent[value] = stage.acked[message.value] = Due.MAY
        await stage.client.transact(stage.producer.outgoing(value), stage.joined.acknowledging(message))
        stage.sent[value] = stage.acked[message.value] = Due.MUST

    async def check(self, stage: Stage) -> None:
        await super().check(stage)
        seen = await stage.read()
        sent = sum(value.startswith(b"in-") for value in seen)
        acknowledged = len(seen) - (await stage.other.lag(stage.topic, SUBSCRIPTION)).messages
        assert sent == acknowledged, f"{sent} messages and {acknowledged} acknowledgments took effect"


class SendInTransaction(Story):
    """A cancelled send must not be committed: its transaction is marked as failed."""

    covers = ("Producer.send",)
    sampled = ("metadata", "marker")
    leaves_open = True
    reports = (TransactionConflict,)

    async def arrange(self, stage: Stage) -> None:
        await stage.begin()
        stage.by_txn[b"more"] = stage.txn

    async def call(self, stage: Stage) -> None:
        await stage.producer.send(b"more", sequence_id=SEQUENCE, txn=stage.txn)

    async def leave(self, stage: Stage) -> None:
        try:
            await stage.txn.commit()
        except TransactionHasFailedOperations:
            assert await stage.outcome(stage.txn) is State.ABORTED
        else:
            assert await stage.outcome(stage.txn) is State.COMMITTED


class CloseProducer(Story):
    covers = ("Producer.close", "Producer.__aenter__", "Producer.__aexit__")
    sends = (b"new",)

    async def arrange(self, stage: Stage) -> None:
        stage.notes["producer"] = await stage.client.producer(stage.topic)

    async def call(self, stage: Stage) -> None:
        async with stage.notes["producer"] as producer:
            try:
                await producer.send(b"new", sequence_id=SEQUENCE)
            except Closed:
                return

    async def repeat(self, stage: Stage) -> None:
        await self.call(stage)
        await stage.notes["producer"].close()

    def has_happened(self, stage: Stage) -> None:
        """The producer may have been closed before it sent."""


class OpenProducer(Story):
    covers = ("Client.producer",)

    async def call(self, stage: Stage) -> None:
        await (await stage.client.producer(stage.topic)).close()


class Read(Story):
    covers = ("Client.reader", "Reader.open", "Reader.__aenter__", "Reader.__aexit__", "Reader.__aiter__")

    async def call(self, stage: Stage) -> None:
        async with await stage.client.reader(stage.topic) as reader:
            seen = [message.value async for message in reader]
        assert seen[:3] == [b"0", b"1", b"2"]


class ReadSnapshot(Story):
    covers = ("Client.snapshot", "Snapshot.reader")
    families = ("metadata", "marker")

    async def call(self, stage: Stage) -> None:
        snapshot = await stage.client.snapshot(stage.topic)
        async with await snapshot.reader(stage.topic) as reader:
            seen = [message.value async for message in reader]
        assert seen[:3] == [b"0", b"1", b"2"]


class Follow(Story):
    covers = ("Client.reader", "Reader.__aiter__", "Reader.close")

    async def call(self, stage: Stage) -> None:
        reader = await stage.client.reader(stage.topic, follow=True, isolation="read_uncommitted")
        try:
            messages = aiter(reader)
            assert [(await anext(messages)).value for _ in range(3)] == [b"0", b"1", b"2"]
        finally:
            await reader.close()


class CloseReader(Story):
    covers = ("Reader.close",)

    async def arrange(self, stage: Stage) -> None:
        stage.reader = await stage.client.reader(stage.topic, follow=True)

    async def call(self, stage: Stage) -> None:
        await stage.reader.close()


class Begin(Story):
    """A transaction whose begin was cancelled is aborted soon, so that it blocks no reader."""

    covers = ("Transaction.begin",)
    sampled = ("metadata", "marker")
    reports = (InvalidInput,)

    async def arrange(self, stage: Stage) -> None:
        stage.txn = stage.client.transaction(domain=stage.domain)

    async def call(self, stage: Stage) -> None:
        await stage.txn.begin()

    async def check_soon(self, stage: Stage) -> None:
        known = () if stage.txn._branch is None else (stage.txn.id,)

        async def gone() -> bool:
            coordinator = await stage.other.host.coordinator(stage.domain)
            return all(one.txn_id in known for one in await coordinator.list_open(ALL_OPEN))

        await stage.soon(gone, lambda: "the transaction that nobody knows to be aborted")

    async def repeat(self, stage: Stage) -> None:
        await super().repeat(stage)
        await stage.producer.send(b"in", txn=stage.txn)
        stage.by_txn[b"in"] = stage.txn
        await stage.txn.commit()

    async def leave(self, stage: Stage) -> None:
        await stage.elsewhere(self.check_soon(stage))


class Commit(Story):
    covers = ("Transaction.commit",)
    sampled = FAMILIES
    ends = True
    reports = (InvalidTransactionState, TransactionHasFailedOperations)

    async def arrange(self, stage: Stage) -> None:
        await stage.join()
        await stage.begin()

    async def call(self, stage: Stage) -> None:
        await stage.txn.commit()

    async def repeat(self, stage: Stage) -> None:
        await stage.txn.commit()
        assert await stage.outcome(stage.txn) is State.COMMITTED


class CommitWhileSending(Story):
    """A commit that is cancelled while it waits for a send may end either way, and ends."""

    covers = ("Transaction.commit",)
    sampled = ("metadata", "marker")
    ends = True
    reports = (InvalidTransactionState, TransactionHasFailedOperations)

    async def arrange(self, stage: Stage) -> None:
        await stage.begin()

    async def call(self, stage: Stage) -> None:
        stage.by_txn[b"more"] = stage.txn
        sending = asyncio.ensure_future(stage.producer.send(b"more", txn=stage.txn))
        sending.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        await asyncio.sleep(0)
        await stage.txn.commit()

    async def check_soon(self, stage: Stage) -> None:
        """The call may have been cancelled before the commit."""

    async def check_visible(self, stage: Stage, value: bytes) -> None:
        if await stage.outcome(stage.txn) is not State.OPEN:
            await stage.check_visible(value)

    async def repeat(self, stage: Stage) -> None:
        try:
            await stage.txn.commit()
        except self.reports:
            assert await stage.outcome(stage.txn) is State.ABORTED


class Abort(Story):
    covers = ("Transaction.abort",)
    sampled = FAMILIES
    ends = True

    async def arrange(self, stage: Stage) -> None:
        await stage.join()
        await stage.begin()

    async def call(self, stage: Stage) -> None:
        await stage.txn.abort()

    async def repeat(self, stage: Stage) -> None:
        await stage.txn.abort()
        assert await stage.outcome(stage.txn) is State.ABORTED


class Transact(Story):
    """A whole ``async with``: cancelled anywhere, its transaction is decided soon."""

    covers = ("Transaction.__aenter__", "Transaction.__aexit__")
    sampled = FAMILIES

    async def arrange(self, stage: Stage) -> None:
        await stage.join()

    async def call(self, stage: Stage) -> None:
        number = stage.notes["number"] = stage.notes.get("number", 0) + 1
        value = b"in-%d" % number
        async with stage.client.transaction(domain=stage.domain) as txn:
            stage.by_txn[value] = txn
            await stage.producer.send(value, txn=txn)
            await stage.joined.ack(stage.messages[number], txn=txn)
            stage.acked_by_txn[stage.messages[number].value] = txn

    async def check_soon(self, stage: Stage) -> None:
        for txn in stage.by_txn.values():

            async def decided() -> bool:
                return await stage.outcome(txn) is not State.OPEN  # noqa: B023 - it is awaited at once

            await stage.soon(decided, lambda: "the transaction to be decided")


class Finish(Story):
    covers = ("JoinedTransaction.finish", "JoinedTransaction.__aenter__", "JoinedTransaction.__aexit__")
    sampled = ("metadata", "sidecar")
    leaves_open = True
    reports = (TransactionConflict, TransactionHasFailedOperations)

    async def arrange(self, stage: Stage) -> None:
        await stage.begin()
        stage.notes["joined"] = stage.client.join(stage.txn.id)
        stage.by_txn[b"joined"] = stage.txn

    async def call(self, stage: Stage) -> None:
        joined: JoinedTransaction = stage.notes["joined"]
        async with joined:
            await stage.producer.send(b"joined", txn=joined)
        stage.notes["branch"] = joined.branch

    async def repeat(self, stage: Stage) -> None:
        if "branch" not in stage.notes:
            await super().repeat(stage)
        else:
            assert await stage.notes["joined"].finish() == stage.notes["branch"]
            await stage.txn.commit([stage.notes["branch"]])


class EndById(Story):
    """A process that does not take part ends the transaction by its id."""

    ends = True

    async def arrange(self, stage: Stage) -> None:
        await stage.join()
        await stage.begin()


class CommitById(EndById):
    covers = ("Client.commit",)
    sampled = ("metadata", "marker")

    async def call(self, stage: Stage) -> None:
        await stage.client.commit(stage.txn.id)


class AbortById(EndById):
    covers = ("Client.abort",)
    sampled = ("metadata", "sidecar")

    async def call(self, stage: Stage) -> None:
        await stage.client.abort(stage.txn.id)


class SettleAndAsk(Story):
    """Queries and settling change nothing when they are cancelled; sweeps may finish the settling."""

    covers = ("Client.settle", "Client.outcome", "Client.find_hanging", "Client.ping")

    async def arrange(self, stage: Stage) -> None:
        await stage.join()
        await stage.begin()
        await stage.txn.commit()

    async def call(self, stage: Stage) -> None:
        assert await stage.client.outcome(stage.txn.id) is State.COMMITTED
        await stage.client.settle(stage.txn.id)
        await stage.client.find_hanging(0)
        await stage.client.ping()


class AskAboutTopics(Story):
    covers = (
        "Client.layout",
        "Client.undecided",
        "Client.lag",
        "Client.peek",
        "Client.ack_status",
        "Client.dispatchers",
        "Client.last_message",
        "Client.last_sequence_id",
        "Client.transaction_domain",
        "Consumer.wait_until",
    )

    async def arrange(self, stage: Stage) -> None:
        await stage.join()

    async def call(self, stage: Stage) -> None:
        client = stage.client
        await client.layout(stage.topic)
        await client.undecided(stage.topic)
        await client.lag(stage.topic, SUBSCRIPTION)
        await client.peek(stage.topic, SUBSCRIPTION, 2)
        await client.ack_status(SUBSCRIPTION, stage.messages[0].id)
        await client.dispatchers(stage.topic, SUBSCRIPTION)
        await client.last_message(stage.topic)
        await client.last_sequence_id(stage.topic, "somebody")
        await client.transaction_domain(stage.topic)
        await stage.joined.wait_until(active=True)


class Describe(Story):
    covers = (
        "Client.list_topics",
        "Client.describe_topic",
        "Client.describe_subscription",
        "Client.describe_transaction",
        "Client.count_transactions",
        "Client.leases",
    )

    async def arrange(self, stage: Stage) -> None:
        await stage.join()
        await stage.begin()
        await stage.txn.commit()

    async def call(self, stage: Stage) -> None:
        client = stage.client
        await client.list_topics()
        await client.describe_topic(stage.topic)
        await client.describe_subscription(stage.topic, SUBSCRIPTION)
        await client.describe_transaction(stage.txn.id)
        await client.count_transactions()
        await client.leases()


class Upkeep(Story):
    covers = ("Client.maintain",)
    sampled = ("metadata", "marker")

    async def arrange(self, stage: Stage) -> None:
        await stage.begin()
        await stage.txn.commit()

    async def call(self, stage: Stage) -> None:
        await stage.client.maintain()


STORIES: tuple[Story, ...] = (
    Send(),
    SendMany(),
    TransactInAdvance(),
    TransactInOneStep(),
    SendInTransaction(),
    CloseProducer(),
    OpenProducer(),
    Read(),
    ReadSnapshot(),
    Follow(),
    CloseReader(),
    Begin(),
    Commit(),
    CommitWhileSending(),
    Abort(),
    Transact(),
    Finish(),
    CommitById(),
    AbortById(),
    SettleAndAsk(),
    AskAboutTopics(),
    Describe(),
    Upkeep(),
)
