"""The base class of scenarios for crash tests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ClassVar, TypeVar

from crash_story import Story
from crash_world import World

from txnframework import Client, Consumer, Message
from txnframework.errors import (
    ReceiveTimeout,
    SubscriptionOwnedElsewhere,
    TopicNotFound,
    TransactionConflict,
    Unavailable,
)
from txnframework.model import Reach

T = TypeVar("T")

ORDERS = "topic://public/default/orders"
INVOICES = "topic://public/default/invoices"
BILLING = "billing"
PATIENCE_MS = 60_000


class Scenario(ABC):
    """
    One operation, and what happens around it.

    ``arrange`` brings the victim to where the operation begins; ``operate`` is the operation, in which the victim is
    killed or its stores fail; ``carry_on`` is what the same program does next if it lives; ``resume`` is what another
    one does after its death. All of them tell the story what they do.
    """

    topics: ClassVar[dict[str, int]] = {ORDERS: 1, INVOICES: 1}
    """Initial number of segments of each topic."""
    subscriptions: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Those whose deliveries are checked at the end: topic and name."""
    reach: ClassVar[Reach] = Reach.PARTITION
    """Walk it on a store whose batches have any partitions, so that transactions are settled as they end."""
    composed: ClassVar[bool] = False
    """Its parts are walked by themselves, so only its writes are made to fail, and each change is killed after once."""
    transactions: ClassVar[dict[str, Any]] = {}
    """How the victim and the bystander are configured, of the table ``transactions``."""
    retention: ClassVar[dict[str, Any]] = {}
    """And of the table ``retention``; with one, the bystander acknowledges what it is shown, as nothing goes before."""

    watcher_acknowledges: ClassVar[bool] = False
    """The bystander's consumer acknowledges what it is shown: what it holds would be delivered to it again."""

    def __init__(self, world: World, story: Story) -> None:
        self.world = world
        self.story = story

    async def arrange(self, client: Client) -> None:  # noqa: B027 - most, not all, have something to do here
        """Bring the victim to where the operation begins."""

    @abstractmethod
    async def operate(self, client: Client) -> None:
        """Perform the operation under test, on the victim."""

    async def carry_on(self, client: Client, failed: bool) -> None:  # noqa: B027
        """Go on after the operation, on the victim."""

    async def resume(self, client: Client) -> None:  # noqa: B027
        """Go on after the victim's death, in another process."""

    def taken_for_gone(self) -> None:  # noqa: B027
        """End the victim's transaction, as a database does when a client is suspended for long."""

    def check(self) -> None:  # noqa: B027
        """Look at the space when everything has settled."""

    # -- what several of them do ----------------------------------------------------------------------

    @property
    def bystander(self) -> Client:
        """A client that was there before the victim, and lives on."""
        return self.world.machines["bystander"].client

    async def in_bystander(self, work: Coroutine[Any, Any, T]) -> T:
        """Let the bystander do something, in its own process."""
        return await self.world.machines["bystander"].spawn(work)

    async def fill(self, topic: str, *values: bytes) -> None:
        """Let the bystander send messages outside transactions, each in an entry of its own."""

        async def send() -> None:
            async with await self.bystander.producer(topic) as producer:
                for value in values:
                    await self.story.send(producer, value, key=b"k")

        await self.in_bystander(send())

    async def receive(self, client: Client, topic: str, messages: int) -> tuple[Consumer, tuple[Message, ...]]:
        """Join the subscription and receive so many messages."""
        consumer = await client.consumer(topic, BILLING, start="earliest")
        received: list[Message] = []
        while len(received) < messages:
            received += await consumer.receive_many(messages_max=messages - len(received), timeout_ms=PATIENCE_MS)
        return consumer, tuple(received)


async def patiently(client: Client, attempt: Callable[[], Awaitable[T]]) -> T:
    """Retry while something is in the way: a lease that must expire, a transaction, or a topic not yet created."""
    environment = client.host.environment
    deadline_ms = environment.now_ms() + PATIENCE_MS
    while True:
        try:
            return await attempt()
        except (SubscriptionOwnedElsewhere, TopicNotFound, TransactionConflict, Unavailable):
            if environment.now_ms() >= deadline_ms:
                raise
            await environment.sleep_until(environment.now_ms() + 1_000)


async def drain(client: Client, topic: str, subscription: str) -> list[Message]:
    """Return everything that a subscription delivers."""
    consumer = await patiently(client, lambda: client.consumer(topic, subscription, start="earliest"))
    received: list[Message] = []
    async with consumer:
        while True:
            try:
                received += await consumer.receive_many(messages_max=100, timeout_ms=2_000)
            except ReceiveTimeout:
                return received


async def read(client: Client, topic: str) -> list[Message]:
    """Return everything that may be read now."""
    async with await client.reader(topic) as reader:
        return [message async for message in reader]
