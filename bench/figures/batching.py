"""Batched logs of the log-driven family: entries per record, transactions per second, and recovery."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from measurement import Found, Run, Target, interleaved, opened, timed

from txnframework import Client, Consumer, Message, Producer
from txnframework.model import Action, Begin, End
from txnframework_legacy.administration import log_names, read_statistics
from txnframework_legacy.log.switches import LogKind

TOGETHER = 512
TOPIC = "persistent://public/default/t"
LONG_MS = 3_600_000
Work = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Side:
    """Open a client with or without batched logs, on a database that commits each write separately."""

    client: Client
    producers: list[Producer]
    consumer: Consumer

    async def entries_and_records(self) -> tuple[int, int]:
        """Count the entries and records of the transaction logs."""
        host, kind = self.client.host, LogKind.TRANSACTIONS
        names = [name async for name in log_names(host.ledgers, kind)]
        found = [await read_statistics(host.ledgers, host.environment, kind, name) for name in names]
        return sum(one.entries for one in found if one), sum(one.records for one in found if one)

    async def decide(self) -> None:
        """Begin an empty transaction and commit it: the coordinator's own work."""
        coordinator = await self.client.host.coordinator("persistent")
        begun = await coordinator.begin(Begin(LONG_MS))
        await coordinator.end(End(begun.txn_id, Action.COMMIT))

    async def acknowledge(self, message: Message) -> None:
        """Acknowledge one message in a transaction."""
        async with self.client.transaction(domain="persistent", timeout_ms=LONG_MS) as txn:
            await self.consumer.ack(message, txn=txn)

    async def send(self, producer: Producer) -> None:
        """Send one message in a transaction, which appends two entries to the topic: message and marker."""
        async with self.client.transaction(domain="persistent", timeout_ms=LONG_MS) as txn:
            await producer.send(b"x" * 100, txn=txn)

    async def received(self, messages: int) -> list[Message]:
        await self.producers[0].send_many([b"x" * 100] * messages)
        found: list[Message] = []
        while len(found) < messages:
            found += await self.consumer.receive_many(messages_max=messages - len(found), timeout_ms=60_000)
        return found


async def batched_over_plain(run: Run) -> list[Found]:
    """The cost of 512 concurrent transactions with batching over without, where no commit is shared."""
    together = run.size(TOGETHER, 32)
    ratios: dict[str, list[float]] = {name: [] for name in ("entries", "decide", "acknowledge", "send")}
    best: dict[str, float] = {}
    async with _side(run, together, batching=True) as batched, _side(run, together, batching=False) as plain:

        async def round_of(name: str) -> float:
            """Return the seconds without batching over the seconds with it."""
            took = [await _prepared(side, name, together) for side in (batched, plain)]
            mine, other = await interleaved(1, *(lambda works=works: _all(works) for works in took))
            for title, seconds in ((f"{name}_batched_per_s", mine), (f"{name}_plain_per_s", other)):
                best[title] = max(best.get(title, 0), round(together / seconds[0]))
            return other[0] / mine[0]

        for name in ("decide", "acknowledge", "send"):
            await round_of(name)
            for number in range(run.rounds):
                run.progress(f"{name}: round {number + 1} of {run.rounds}")
                before = [await side.entries_and_records() for side in (batched, plain)]
                ratios[name].append(await round_of(name))
                if name == "decide":
                    after = [await side.entries_and_records() for side in (batched, plain)]
                    mine, other = [
                        (entries - old) / (records - old_records)
                        for (entries, records), (old, old_records) in zip(after, before, strict=True)
                    ]
                    ratios["entries"].append(mine / other)
    what = f"transactions per second of {together} at a time, batched / plain, no group commit"
    return [
        Found(
            f"ledger entries for a transaction log's record, {together} at a time, batched / plain",
            tuple(ratios["entries"]),
            Target(0.02),
        ),
        Found(f"{what}: begun and committed", tuple(ratios["decide"]), Target(3.0, at_most=False), _of(best, "decide")),
        Found(f"{what}: one message acknowledged", tuple(ratios["acknowledge"]), None, _of(best, "acknowledge")),
        Found(f"{what}: one message sent", tuple(ratios["send"]), None, _of(best, "send")),
    ]


def _of(best: dict[str, float], name: str) -> dict[str, float | str]:
    return {title: value for title, value in best.items() if title.startswith(name)}


async def _prepared(side: Side, name: str, together: int) -> list[Work]:
    """Return the work to be timed."""
    if name == "decide":
        return [side.decide] * together
    if name == "send":
        return [lambda producer=producer: side.send(producer) for producer in side.producers]
    return [lambda message=message: side.acknowledge(message) for message in await side.received(together)]


async def _all(works: list[Work]) -> float:
    return await timed(asyncio.gather(*(work() for work in works)))


@asynccontextmanager
async def _side(run: Run, together: int, *, batching: bool) -> AsyncIterator[Side]:
    config = run.backend.config("batched" if batching else "plain")
    alone = {"options": {"group_max": 1}}
    stores = {name: {**section, **alone} for name, section in config.items() if isinstance(section, dict)}
    logs = {"log": {"batching": {"enabled": batching}}}
    transactions = {"sweep": False, "coordinators": 1, "end_timeout_ms": LONG_MS}
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            opened(stores, coordinators=logs, pending_acks=logs, transactions=transactions)
        )
        await client.create_topic(TOPIC)
        producers = [await client.producer(TOPIC) for _ in range(together)]
        consumer = await stack.enter_async_context(await client.consumer(TOPIC, "s", start="earliest"))
        yield Side(client, producers, consumer)
