"""The stage of a story: one process that cancels a call, another one that observes, and the required end state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import cache
from typing import Any, TypeVar

from crash_story import Due
from crash_world import TRANSACTIONS, _one_round
from crash_world import registry as crash_registry

from txnframework import Client, Consumer, Message, Producer, Reader, State, Transaction
from txnframework.config import Config, TransactionsSection
from txnframework.config._sections import DomainsSection, PersistentDomain
from txnframework.errors import (
    ConsumerBusy,
    ReceiveTimeout,
    SubscriptionOwnedElsewhere,
    TransactionNotFound,
)
from txnframework.model.paths import leases_range
from txnframework.plugin import PluginRegistry, load_plugins
from txnframework.testing import VirtualEnvironment
from txnframework_memory.space import MemorySpace
from txnframework_simulation.simulator import Machine, SimulatedLoop, SimulatedStores, World

T = TypeVar("T")

FAMILIES = ("metadata", "marker", "sidecar")
SUBSCRIPTION = "billing"
PROMPT_MS = 1_000
"""Time after which a call has taken effect; much shorter than the interval of sweeps."""
CLOSE_MS = 5_000
QUIET_MS = 300
"""A consumer that receives nothing for this time has received everything."""
SEED = 0


class Stage:
    """One world in which a story runs once.

    Without ``sweeps``, work that a process leaves to others is not done.

    For each value of the topic, ``sent`` says whether it must exist, and ``acked`` whether it must be acknowledged.
    """

    def __init__(self, family: str, sweeps: bool = True) -> None:
        self.sweeps = sweeps
        loop = SimulatedLoop(VirtualEnvironment(SEED), SEED)
        self.family = family
        self.world = World(loop, MemorySpace(loop.environment), registry(family), _one_round)
        self.loop = loop
        self.domain = "segment" if family == "metadata" else "persistent"
        self.scheme = "topic" if family == "metadata" else "persistent"
        self.topic = self.name("orders")
        self.type = "exclusive"
        self.sent: dict[bytes, Due] = {}
        self.acked: dict[bytes, Due] = {}
        self.by_txn: dict[bytes, Transaction] = {}
        self.acked_by_txn: dict[bytes, Transaction] = {}
        self.producer: Producer
        self.consumer: Consumer | None = None
        self.reader: Reader
        self.messages: tuple[Message, ...] = ()
        self.txn: Transaction
        self.notes: dict[str, Any] = {}
        self.other_machine = self._start("other")
        self.victim = self._start("victim")

    # -- what stories use -----------------------------------------------------------------------------

    @property
    def client(self) -> Client:
        """The client whose calls are given up."""
        return self.victim.client

    @property
    def other(self) -> Client:
        """The observing client, in its own process."""
        return self.other_machine.client

    def name(self, topic: str) -> str:
        """Return the full name of a topic in the domain of the family."""
        return f"{self.scheme}://public/default/{topic}"

    async def prepare(self) -> None:
        """Make the topic and its subscription, with three messages."""
        await self.client.create_topic(self.topic)
        await self.client.subscribe(self.topic, SUBSCRIPTION, start="earliest")
        self.producer = await self.client.producer(self.topic, name="victim")
        await self.send(b"0", b"1", b"2")

    async def send(self, *values: bytes) -> None:
        """Send messages outside transactions, each confirmed."""
        for value in values:
            await self.producer.send(value)
            self.sent[value] = Due.MUST

    async def join(self, messages: int = 3, type: str = "exclusive") -> None:
        """Join the subscription and receive so many messages."""
        self.type = type
        self.consumer = await self.client.consumer(self.topic, SUBSCRIPTION, type=type)
        received: list[Message] = []
        while len(received) < messages:
            received += await self.consumer.receive_many(messages_max=messages - len(received), timeout_ms=10_000)
        self.messages = tuple(received)

    @property
    def joined(self) -> Consumer:
        """The consumer of the victim."""
        assert self.consumer is not None
        return self.consumer

    async def begin(self, *, filled: bool = True) -> Transaction:
        """Begin a transaction; ``filled``: it has sent a message and acknowledged the first one received."""
        self.txn = self.client.transaction(domain=self.domain)
        await self.txn.begin()
        if filled:
            await self.producer.send(b"in", txn=self.txn)
            self.by_txn[b"in"] = self.txn
            if self.consumer is not None:
                await self.joined.ack(self.messages[0], txn=self.txn)
                self.acked_by_txn[self.messages[0].value] = self.txn
        return self.txn

    # -- what is asked afterwards ---------------------------------------------------------------------

    async def elsewhere(self, work: Coroutine[Any, Any, T]) -> T:
        """Call a function in the observing process."""
        return await self.other_machine.spawn(work)

    async def outcome(self, txn: Transaction) -> State:
        """Return the outcome of a transaction that others see."""
        try:
            return await self.elsewhere(self.other.outcome(txn.id))
        except TransactionNotFound:
            return State.ABORTED

    async def read(self, topic: str | None = None) -> list[bytes]:
        """Return what others may read now."""

        async def read() -> list[bytes]:
            async with await self.other.reader(topic or self.topic) as reader:
                return [message.value async for message in reader]

        return await self.elsewhere(read())

    async def check_visible(self, value: bytes) -> None:
        """Send a message that others can read soon: no ended or unknown transaction blocks it."""
        async with await self.other.producer(self.topic) as producer:
            await producer.send(value)
        self.sent[value] = Due.MUST
        seen: list[bytes] = []

        async def visible() -> bool:
            nonlocal seen
            seen = await self.read()
            return value in seen and not [one for one in await self._must_be_there() if one not in seen]

        await self.soon(visible, lambda: f"{value!r} and what was committed before it to be readable, found {seen}")

    async def check_topic(self) -> None:
        """Others read the existing messages once, and nothing else."""
        seen = await self.read()
        assert len(seen) == len(set(seen)), f"read twice: {seen}"
        must = await self._must_be_there()
        never = [value for value, txn in self.by_txn.items() if await self.outcome(txn) is not State.COMMITTED]
        never += [value for value, due in self.sent.items() if due is Due.NEVER]
        assert not (missing := [value for value in must if value not in seen]), f"{missing} missing in {seen}"
        assert not (wrong := [value for value in seen if value in never]), f"{wrong} of {seen} was not committed"
        known = {*self.sent, *self.by_txn}
        assert known >= set(seen), f"nobody sent {set(seen) - known}"

    async def check_subscription(self, client: Client, at_once: bool) -> None:
        """A consumer can take the subscription, and receives existing unfinished messages once."""
        consumer: Consumer | None = None

        async def taken() -> bool:
            nonlocal consumer
            try:
                consumer = await client.consumer(self.topic, SUBSCRIPTION, type=self.type)
            except (SubscriptionOwnedElsewhere, ConsumerBusy):
                if at_once:
                    raise
                return False
            return True

        await self.soon(taken, lambda: "the subscription to be free")
        assert consumer is not None
        received: list[bytes] = []
        async with consumer:
            while True:
                try:
                    messages = await consumer.receive_many(messages_max=100, timeout_ms=QUIET_MS)
                except ReceiveTimeout:
                    break
                received += [message.value for message in messages]
        await self._check_received(received)

    async def soon(self, happened: Callable[[], Awaitable[bool]], what: Callable[[], str]) -> None:
        """Wait for something that must happen soon."""
        environment = self.loop.environment
        end_ms = environment.now_ms() + PROMPT_MS
        while not await happened():
            assert environment.now_ms() < end_ms, f"waited {PROMPT_MS} ms for {what()}"
            await environment.sleep_until(environment.now_ms() + 20)

    def check_leases(self) -> None:
        """Without a consumer, no process dispatches."""
        found = self.world.spaces[0].records.scan(leases_range("dispatch "), 100).records
        assert not found, f"held without a consumer: {[record.key.path for record in found]}"

    def check_closed(self, machine: Machine, since_ms: int) -> None:
        """The client has closed soon, and none of its tasks runs."""
        took_ms = self.loop.environment.now_ms() - since_ms
        assert took_ms <= CLOSE_MS, f"closing the client took {took_ms} ms"
        self.loop.advance(0)
        left = [str(task) for task in self.loop._tasks if task.process is machine.process and not task.done()]
        assert not left, f"left running: {left}"

    def end(self) -> None:
        """End the world."""
        assert not self.loop.reports, f"errors that nobody was told of: {self.loop.reports}"

    # -- parts ----------------------------------------------------------------------------------------

    async def _must_be_there(self) -> list[bytes]:
        must = [value for value, due in self.sent.items() if due is Due.MUST]
        return must + [value for value, txn in self.by_txn.items() if await self.outcome(txn) is State.COMMITTED]

    async def _check_received(self, received: list[bytes]) -> None:
        assert len(received) == len(set(received)), f"received twice: {received}"
        must = await self._must_be_there()
        done = {value for value, due in self.acked.items() if due is Due.MUST}
        maybe = {value for value, due in self.acked.items() if due is Due.MAY}
        for value, txn in self.acked_by_txn.items():
            if await self.outcome(txn) is State.COMMITTED:
                done.add(value)
        missing = [value for value in must if value not in done | maybe and value not in received]
        assert not missing, f"{missing} not received, only {received}"
        assert not done & set(received), f"{done & set(received)} received although done"

    def _start(self, name: str) -> Machine:
        machine = self.world.machine(name)
        machine.open(self.world.config(name, self.config()))
        return machine

    def config(self) -> Config:
        """Return the configuration of the processes."""
        domains = DomainsSection()
        if self.family != "metadata":
            domains = DomainsSection(
                persistent=PersistentDomain(coordinator="log", buffer=self.family, pending_ack="log")
            )
        return Config(transactions=TransactionsSection(**(TRANSACTIONS | {"sweep": self.sweeps})), domains=domains)


@cache
def registry(family: str) -> PluginRegistry:
    """Return the plugins under test, with the stores of the simulation."""
    if family == "metadata":
        return crash_registry(family)
    import txnframework_dispatchers.plugin
    import txnframework_legacy.plugin
    import txnframework_sidecar.plugin

    plugins = (txnframework_legacy.plugin, txnframework_sidecar.plugin, txnframework_dispatchers.plugin)
    return load_plugins([*plugins, SimulatedStores()])
