"""What a workload is: something that clients do at the same time, and what must come of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, NamedTuple, TypeVar

import msgspec

from txnframework_simulation.checkers import Violation
from txnframework_simulation.history import History
from txnframework_simulation.workloads.part import Part
from txnframework_simulation.workloads.recorded import RecordedClient

NAMESPACE = "topic://public/default"


class Subscribed(NamedTuple):
    """A subscription of a workload, and the type that its drain uses."""

    topic: str
    name: str
    type: str = "shared"


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a scenario may say in its table ``options``."""


O = TypeVar("O", bound=Options)  # noqa: E741 - options


class Workload(ABC, Generic[O]):
    """
    Several actors run ``run``, in one process or in many, each with a part of its own.

    A workload knows clients and what is recorded of them, and nothing of where they run: the same one runs in a
    simulation and over real processes. What actors of one process share they keep in the workload itself, and it is
    lost with the process. ``violations`` is its oracle: it looks at the history alone, its drain included.
    """

    options_type: ClassVar[type[Options]] = Options

    def __init__(self, options: O) -> None:
        self.options = options

    @property
    @abstractmethod
    def topics(self) -> dict[str, int]:
        """The topics, and with how many segments each begins."""

    @property
    def subscriptions(self) -> tuple[Subscribed, ...]:
        """The subscriptions that are drained in the end."""
        return ()

    @property
    def types(self) -> dict[str, str]:
        """The subscription types that consumers ask for, by where the options name them."""
        return {}

    @property
    def compacted(self) -> tuple[str, ...]:
        """The topics that are read as they were compacted, in the end."""
        return ()

    async def restore(self, recorded: RecordedClient) -> None:
        """Make again what was deleted, when nothing goes wrong any more."""

    async def prepare(self, recorded: RecordedClient) -> None:
        """Make topics and subscriptions, before anything goes wrong."""
        for topic, segments in self.topics.items():
            await recorded.client.create_topic(topic, segments=segments)
        for one in self.subscriptions:
            await recorded.subscribe(one.topic, one.name)

    @abstractmethod
    async def run(self, part: Part) -> None:
        """Do one actor's part, until nothing is left to do."""

    async def finish(self, part: Part) -> None:
        """Do what has to be possible when nothing goes wrong any more, before everything is drained."""

    def violations(self, history: History) -> list[Violation]:  # noqa: ARG002 - most have something to say
        """Return what the history says against this workload's own promise."""
        return []
