"""Workloads: actors that run concurrently, and the rules that their history must follow."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ClassVar, Generic, NamedTuple, TypeVar

import msgspec

from txnframework.client import Client
from txnframework.environment import Environment
from txnframework.errors import Corrupt, InvalidInput, StoreMismatch, TxnFrameworkError
from txnframework_simulation.checkers import Violation
from txnframework_simulation.history import History
from txnframework_simulation.workloads.recorded_client import RecordedClient

T = TypeVar("T")

WAIT_MS_MAX = 200
NEVER_EXPECTED = (Corrupt, InvalidInput, StoreMismatch)
"""Errors that must not occur even under faults."""


@dataclass(frozen=True)
class ActorContext:
    """
    One actor's part of a workload.

    ``more`` returns whether operations remain; the actors of one process share its operations. The actor's choices come
    from ``chance``, and its time from ``environment``. ``host``: the number of its process, beginning at 0. ``others``:
    clients of other deployments, which record nothing.
    """

    recorded: RecordedClient
    chance: random.Random
    environment: Environment
    more: Callable[[], bool]
    host: int = 0
    others: tuple[Client, ...] = ()

    async def repeat(self, actions: dict[Callable[[], Awaitable[object]], float]) -> None:
        """Do actions one after the other, drawn by their weights, until no operations remain."""
        choices, weights = list(actions), list(actions.values())
        while self.more():
            (action,) = self.chance.choices(choices, weights)
            if await self.attempt(action) is False:
                await self.wait(WAIT_MS_MAX)

    async def attempt(self, action: Callable[[], Awaitable[object]]) -> bool:
        """Do an action that may fail; return whether it succeeded."""
        try:
            await action()
        except NEVER_EXPECTED:
            raise
        except TxnFrameworkError:
            return False
        return True

    async def wait(self, longest_ms: int) -> None:
        """Let some time pass."""
        await self.environment.sleep_until(self.environment.now_ms() + self.chance.randint(1, longest_ms))

    async def wait_for_step(self, step_ms: int) -> None:
        """Wait for the next multiple of ``step_ms``, so that several actors continue at the same moment."""
        await self.environment.sleep_until((self.environment.now_ms() // step_ms + 1) * step_ms)

    def likely(self, chance: float) -> bool:
        """Return True with the given probability."""
        return self.chance.random() < chance


NAMESPACE = "topic://public/default"


class Subscribed(NamedTuple):
    """A subscription of a workload, and the type that its drain uses."""

    topic: str
    name: str
    type: str = "shared"


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options that a scenario may set in its table ``options``."""


O = TypeVar("O", bound=Options)  # noqa: E741 - options


class Workload(ABC, Generic[O]):
    """
    Several actors run ``run``, in one or several processes, each with its own ``ActorContext``.

    A workload uses only recorded clients, so the same workload runs in a simulation and over real processes. The
    workload contains the state that actors of one process share, which is lost with the process. ``violations`` is its
    oracle, which uses only the history, including its drain.
    """

    options_type: ClassVar[type[Options]] = Options

    def __init__(self, options: O) -> None:
        self.options = options

    @property
    @abstractmethod
    def topics(self) -> dict[str, int]:
        """The topics, with the initial number of segments of each."""

    @property
    def subscriptions(self) -> tuple[Subscribed, ...]:
        """The subscriptions that are drained at the end of a run."""
        return ()

    @property
    def types(self) -> dict[str, str]:
        """The subscription types of consumers, by the key of the option that names them."""
        return {}

    @property
    def compacted(self) -> tuple[str, ...]:
        """The topics whose compacted messages are read at the end of a run."""
        return ()

    async def restore(self, recorded: RecordedClient) -> None:
        """Create deleted topics and subscriptions again, after the last fault."""

    async def prepare(self, recorded: RecordedClient) -> None:
        """Create topics and subscriptions, before the first fault."""
        for topic, segments in self.topics.items():
            await recorded.client.create_topic(topic, segments=segments)
        for one in self.subscriptions:
            await recorded.subscribe(one.topic, one.name)

    @abstractmethod
    async def run(self, context: ActorContext) -> None:
        """Do one actor's part, until nothing is left to do."""

    async def finish(self, context: ActorContext) -> None:
        """Do operations that must succeed after the last fault, before the drain."""

    def violations(self, history: History) -> list[Violation]:  # noqa: ARG002 - most have something to say
        """Return the violations of this workload's own rules that the history shows."""
        return []
