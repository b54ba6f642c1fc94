"""The order of a handler loop's messages under every disturbance, and how far one key or segment delays others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any

import pytest

from txnframework import Client, Consumer, Message, Producer
from txnframework.broker import dispatching_lease
from txnframework.client import PlannedSend
from txnframework.errors import Unavailable
from txnframework.model import paths
from txnframework.testing.clock import VirtualEnvironment, run_ready

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = [pytest.mark.families, pytest.mark.one_server]

WAYS = [("run", 1), ("run", 2), ("run", 4), ("run_batches", 1), ("run_batches", 2)]
"""Ways to run a handler: the method, and the concurrency."""
VALUES = (b"a0", b"b0", b"a1", b"a2", b"b1", b"a3", b"b2", b"c0")
STEPS_MAX = 20_000
"""More steps than any run here needs."""
STEPS_IDLE = 15
"""The clock moves on after so many steps."""
PLACES = 10
"""At how many places each way to run is disturbed."""


class Failing(Exception):
    """A handler that fails."""


FAILURES: dict[bytes, tuple[type[BaseException], ...]] = {
    b"a0": (Unavailable, Failing),
    b"b1": (asyncio.CancelledError,),
    b"a2": (Failing, Unavailable),
}
"""What the first calls of the handler raise for a message."""


@dataclass
class Work:
    """A handler with failures, and the loop that runs it."""

    client: Client
    consumer: Consumer
    invoices: Producer
    clock: VirtualEnvironment
    method: str
    concurrency: int
    calls: Counter[bytes] = field(default_factory=Counter)
    misuses: bool = False

    async def handle(self, received: Message | tuple[Message, ...]) -> Any:
        """Return an invoice for each message, or fail as ``FAILURES`` says."""
        orders = received if isinstance(received, tuple) else (received,)
        await asyncio.sleep(0)
        if self.misuses:
            self.misuses = False
            return "nothing that can be sent"
        for order in orders:
            assert order.value is not None
            call, failures = self.calls[order.value], FAILURES.get(order.value, ())
            self.calls[order.value] += 1
            if call < len(failures):
                raise failures[call]("as the test wants it")
        return [self._invoice(order) for order in orders]

    def _invoice(self, order: Message) -> PlannedSend:
        return self.invoices.outgoing(order.value, key=order.key)

    async def run(self) -> None:
        """Run the handler until it is disturbed."""
        await getattr(self.consumer, self.method)(self.handle, concurrency=self.concurrency)

    async def step(self, number: int) -> None:
        """Let the loop make a step, or time pass."""
        await asyncio.sleep(0)
        next_ms = self.clock.next_ms()
        if number % STEPS_IDLE == 0 and next_ms is not None:
            self.clock.move_to(next_ms)

    async def until(self, done: Callable[[], bool]) -> int:
        """Make steps until something is so, and return their number."""
        for number in range(1, STEPS_MAX):
            if done():
                return number
            await self.step(number)
        raise AssertionError(f"not done after {STEPS_MAX} steps; called: {self.calls}")

    async def finish(self, running: asyncio.Future[None]) -> int:
        """Run until everything is committed, again if it was ended; return the number of steps."""
        steps = 0
        while True:
            lag = asyncio.ensure_future(self.client.lag("orders", "billing"))
            steps += await self.until(lag.done)
            if not lag.result().messages:
                break
            if running.done():
                running = asyncio.ensure_future(self.run())
            for number in range(100):
                await self.step(number)
            steps += 100
        self.consumer.stop()
        steps += await self.until(running.done)
        return steps


Disturb = Callable[[Work, "asyncio.Future[None]"], Awaitable[object]]


async def stop(work: Work, _running: asyncio.Future[None]) -> None:
    """Stop the loop gracefully."""
    work.consumer.stop()


async def stop_twice(work: Work, _running: asyncio.Future[None]) -> None:
    """Stop the loop, and its handlers."""
    work.consumer.stop()
    await asyncio.sleep(0)
    work.consumer.stop()


async def cancel(_work: Work, running: asyncio.Future[None]) -> None:
    """Cancel the loop."""
    running.cancel()


async def misuse(work: Work, _running: asyncio.Future[None]) -> None:
    """Let the handler return what it must not return."""
    work.misuses = True


async def redeliver(work: Work, _running: asyncio.Future[None]) -> None:
    """Ask for everything again, beside the loop."""
    await work.consumer.redeliver_unacknowledged()


async def lose_the_lease(work: Work, _running: asyncio.Future[None]) -> None:
    """Let another process break the lease, as one does that replaces a consumer."""
    store, layout = work.client.host.metadata, await work.client.layout("orders")
    for segment in layout.active():
        lease = dispatching_lease(str(layout.name_of(segment.id)), "billing")
        record = await store.get(paths.lease_key(lease))
        if record is not None:
            await store.break_lease(lease, record.version)


async def nothing(_work: Work, _running: asyncio.Future[None]) -> None:
    """Disturb nothing."""


DISTURBANCES = [stop, stop_twice, cancel, misuse, redeliver, lose_the_lease]


async def committed(
    stores: Stores, kind: str, method: str, concurrency: int, disturb: Disturb, at: int
) -> tuple[list[bytes], int]:
    """Disturb a loop after so many steps; return what was committed, and the number of steps of the whole."""
    clock = stores.environment = VirtualEnvironment()
    async with stores.open(subscriptions={"redelivery_delay_ms": 1_000}) as client:
        await client.create_topic("orders")
        await client.create_topic("invoices")
        orders, invoices = await client.producer("orders"), await client.producer("invoices")
        for value in VALUES:
            await orders.send(value, key=value[:1])
        consumer = await client.consumer("orders", "billing", type=kind, start="earliest")
        await run_ready()
        work = Work(client, consumer, invoices, clock, method, concurrency)
        running = asyncio.ensure_future(work.run())
        for number in range(at):
            await work.step(number)
        await work.until(asyncio.ensure_future(disturb(work, running)).done)
        if disturb in (stop, stop_twice, cancel):
            await work.until(running.done)
        steps = at + await work.finish(running)
        await asyncio.gather(running, return_exceptions=True)
        await consumer.close()
        return await stores.read(client, "invoices"), steps


def keeps_order(values: list[bytes]) -> bool:
    """Return whether each value is there once, and those of a key in their order."""
    by_key = [[one for one in values if one[:1] == key] for key in (b"a", b"b", b"c")]
    return sorted(values) == sorted(VALUES) and all(one < other for some in by_key for one, other in pairwise(some))


@pytest.mark.parametrize("disturb", DISTURBANCES)
@pytest.mark.parametrize("way", range(len(WAYS)), ids=[f"{method}-{concurrency}" for method, concurrency in WAYS])
@pytest.mark.parametrize("kind", ["failover", "key_shared"])
async def test_no_message_overtakes_another(memory: Stores, kind: str, way: int, disturb: Disturb) -> None:
    """A message is committed after all earlier ones of its key, whatever happens to the loop, after any step of it."""
    url, (method, concurrency) = memory.url, WAYS[way]

    memory.url = f"{url}-undisturbed"
    values, steps = await committed(memory, kind, method, concurrency, nothing, 0)
    assert keeps_order(values)
    # Together, the tests try many places.
    first = 1 + (way * len(DISTURBANCES) + DISTURBANCES.index(disturb)) * 7 % (steps // PLACES)
    for at in range(first, steps, steps // PLACES):
        memory.url = f"{url}-{at}"
        values, _ = await committed(memory, kind, method, concurrency, disturb, at)
        assert keeps_order(values), f"disturbed after {at} of {steps} steps: {values}"


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("method", ["run", "run_batches"])
@pytest.mark.parametrize(("kind", "segments"), [("exclusive", 2), ("failover", 2), ("key_shared", 1), ("shared", 1)])
async def test_a_key_that_waits_does_not_keep_others_waiting(
    memory: Stores, kind: str, segments: int, method: str, concurrency: int
) -> None:
    """While a message waits for its redelivery, others are handled, however many of its key are behind it."""
    clock = memory.environment = VirtualEnvironment()

    client_bounds: dict[str, object] = {"receive_messages_max": 5}
    async with memory.open(subscriptions={"redelivery_delay_ms": 1_000}, client=client_bounds) as client:
        await client.create_topic("orders", segments=segments)
        orders = await client.producer("orders")
        bad = await orders.send(b"bad", key=b"a")
        await orders.send_many([b"behind"] * 40, key=b"a")
        for number in count():
            sent = await orders.send(b"good", key=b"%d" % number)
            if segments == 1 or sent.segment != bad.segment:
                break
        await orders.send_many([b"good"] * 9, key=b"%d" % number)
        handled: Counter[bytes | None] = Counter()
        async with client.consumer("orders", "billing", type=kind, start="earliest") as consumer:

            async def handle(received: Message | tuple[Message, ...]) -> None:
                for one in received if isinstance(received, tuple) else (received,):
                    if one.value == b"bad":
                        handled[b"tried"] += 1
                        raise Failing
                    handled[one.value] += one.key == b"%d" % number or one.value == b"behind"

            running = asyncio.ensure_future(
                getattr(consumer, method)(handle, concurrency=concurrency, redelivery_delay_ms_max=30_000)
            )
            for _ in range(40):
                await clock.advance(10)  # together less than the shortest delay
            assert handled[b"good"] == 10
            assert handled[b"behind"] == (40 if kind == "shared" else 0)
            before = handled[b"tried"]
            await clock.advance(31_000)
            assert handled[b"tried"] > before
            consumer.stop()
            await running
