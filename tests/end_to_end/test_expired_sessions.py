"""ZooKeeper ends a host's session during an operation: the host continues in a new session, and nothing is partial.

The session ends while the deciding write is in progress: before it is sent, or after it was applied without a reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from txnframework import Client
from txnframework.errors import Conflict, NotFound, OutcomeUnknown, ReceiveTimeout, Unavailable
from txnframework.model import TopicName

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from conftest import Stores

T = TypeVar("T")

MESSAGES = 36
AT_ONCE = 3
EVERY = 4
"""How many transactions there are for each end of the session."""
TIMEOUT_MS = 500
PAUSE_S = 0.02
WRITTEN = {"publish": "/records/txn-op:", "ack": "/records/txn-op:", "end": "/records/txn:", "split": "/records/topic:"}
"""Below which node each phase writes first."""

Expire = Callable[[Client], Awaitable[None]]


@pytest.fixture
def expire() -> Expire:
    """Let the servers end a client's session, and return when there is another one."""
    clients = pytest.importorskip("txnframework_zookeeper.testing._clients")

    async def expire(client: Client) -> None:
        store: Any = client.host.metadata
        await clients.expire(store.zookeeper)

    return expire


async def until_answered(work: Callable[[], Awaitable[T]]) -> T:
    """Retry until there is a connection again; repeating the calls is harmless."""
    while True:
        try:
            return await work()
        except ReceiveTimeout:
            raise
        except (Unavailable, OutcomeUnknown):
            await asyncio.sleep(PAUSE_S)


class Transforming:
    """Moves messages to another topic in transactions, and loses its session in one phase of some of them."""

    def __init__(self, client: Client, phase: str, expire: Expire) -> None:
        self.committed: list[bytes] = []
        self.expired = 0
        self._client = client
        self._phase = phase
        self._expire = expire
        self._transactions = 0

    async def run(self) -> None:
        """Move everything there is."""
        client = self._client
        consumer = await client.consumer("in", "transform", start="earliest", stand_by=True)
        producer = await client.producer("out")
        while True:
            try:
                messages = await until_answered(
                    lambda: consumer.receive_many(messages_max=AT_ONCE, timeout_ms=TIMEOUT_MS)
                )
            except ReceiveTimeout:
                # What belonged to a lost session may come later than that.
                if (await until_answered(lambda: client.lag("in", "transform"))).messages == 0:
                    return
                continue
            self._transactions += 1
            try:
                async with client.transaction() as txn:
                    async with self.perhaps_expiring("publish"):
                        for message in messages:
                            await producer.send(message.value, key=message.value, txn=txn)
                    async with self.perhaps_expiring("split"):
                        if self._transactions % EVERY == 0 and self._phase == "split":
                            layout = await client.host.topics.layout(TopicName.parse("topic://public/default/out"))
                            await client.split("out", layout.active()[0].id)
                    async with self.perhaps_expiring("ack"):
                        await consumer.ack(*messages, txn=txn)
                    async with self.perhaps_expiring("end"):
                        await txn.commit()
            except (Conflict, NotFound, Unavailable, OutcomeUnknown):
                # What was done after all does not come again.
                await until_answered(consumer.redeliver_unacknowledged)
            else:
                self.committed += [message.value for message in messages]

    @asynccontextmanager
    async def perhaps_expiring(self, phase: str) -> AsyncIterator[None]:
        """In some transactions, let the session end during this call."""
        if phase != self._phase or self._transactions % EVERY:
            yield
            return
        store: Any = self._client.host.metadata
        session = store.zookeeper.session
        submit = session.submit
        expiring: list[asyncio.Future[None]] = []

        def holding(request: Any, reply: Any, session_id: int | None = None) -> None:
            if not _writes(request, WRITTEN[phase]):
                submit(request, reply, session_id)
                return
            session.submit = submit
            self.expired += 1
            arguments = request, reply, session_id
            expiring.append(asyncio.ensure_future(self._expire_with(arguments, submit, self.expired % 2 == 0)))

        session.submit = holding
        try:
            yield
        finally:
            session.submit = submit
            await asyncio.gather(*expiring)

    async def _expire_with(self, arguments: tuple[Any, Any, int | None], submit: Any, is_applied: bool) -> None:
        request, reply, session_id = arguments
        if not is_applied:
            await self._expire(self._client)
            submit(request, reply, session_id)
            return
        done = type(reply)(asyncio.get_running_loop())
        submit(request, done, session_id)
        await done.answer
        await self._expire(self._client)
        reply.take(pytest.importorskip("kazoo.exceptions").SessionExpiredError())


def _writes(request: Any, below: str) -> bool:
    """Return whether a request of the driver is a multi that creates or writes a node there."""
    ops = getattr(request, "ops", ())
    return any(type(op).__name__ in ("CreateNode", "SetNode") and op.path.startswith(below) for op in ops)


@pytest.mark.parametrize("phase", ["publish", "ack", "end", "split"])
async def test_a_session_ends_while_messages_are_moved(zookeeper: Stores, phase: str, expire: Expire) -> None:
    """Every message is moved once, whatever happened to the transaction in which the session ended."""
    expected = sorted(b"%d" % number for number in range(MESSAGES))

    async with zookeeper.open() as client:
        await client.create_topic("in", segments=2)
        await client.create_topic("out")
        await (await client.producer("in")).send_many([b"%d" % number for number in range(MESSAGES)])
    async with zookeeper.open() as client:
        transforming = Transforming(client, phase, expire)
        await transforming.run()
        assert transforming.expired >= MESSAGES // AT_ONCE // EVERY >= 2
    async with zookeeper.open() as fresh:
        assert sorted(await zookeeper.read(fresh, "out")) == expected
    assert {*transforming.committed} <= {*expected}
    assert len(transforming.committed) == len({*transforming.committed})
