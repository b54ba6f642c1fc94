"""Stores behind a connection that a test disturbs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from txnframework import Client
from txnframework.errors import OutcomeUnknown, Unavailable
from txnframework.interfaces import IJointCoordinator, ILedgerStore, IMetadataStore
from txnframework.model import Step
from txnframework.plugin import PluginRegistry
from txnframework.runtime.proxy import ForwardingProxy
from txnframework.testing.connection import StoreConnection, intercept_calls

STEP = "step"
"""The name of a step that is a whole transaction."""
FIRST_APPEND = "first append"
"""The name of a step with an intent."""
R = TypeVar("R")


async def _nothing(_: str) -> None:
    """Do nothing around a call."""


class Connection(StoreConnection):
    """The connection of all clients of a test: ``names`` has the calls, which ``before`` and ``after`` may disturb."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.before: Callable[[str], Awaitable[None]] = _nothing
        self.after: Callable[[str], Awaitable[None]] = _nothing

    async def step(self, name: str, call: Callable[[], Awaitable[R]], arguments: tuple[Any, ...] = ()) -> R:
        """Make one call of a store."""
        known = _name_of(name, arguments)
        await self.before(known)
        answer = await super().step(name, call, arguments)
        self.names.append(known)
        await self.after(known)
        return answer

    def once_before_the_step(self, work: Callable[[], Awaitable[object]]) -> None:
        """Do something just before the next step is made."""

        async def before(name: str) -> None:
            if name == STEP:
                self.before = _nothing
                await work()

        self.before = before

    def lose_the_step(self, then_refused: tuple[str, ...] = (), times: int = 0) -> None:
        """Lose the reply of the next step; then fail this number of calls with these names."""

        async def before(name: str) -> None:
            nonlocal times
            if self.after is _nothing and name in then_refused and times:
                times -= 1
                raise Unavailable(f"{name} was refused by the test")

        async def after(name: str) -> None:
            if name == STEP:
                self.after = _nothing
                raise OutcomeUnknown("the reply was lost by the test")

        self.before, self.after = before, after

    def restore(self) -> None:
        """Let all calls pass."""
        super().restore()
        self.before = self.after = _nothing


class Intercepted(ForwardingProxy):
    """Plugins whose stores are behind a connection."""

    def __init__(self, behind: PluginRegistry, connection: Connection) -> None:
        super().__init__(behind)
        self._connection = connection

    async def open(self, provider: Any, context: Any) -> Any:
        """Open an object; if it is a store, return it behind the connection."""
        opened = await self._behind.open(provider, context)
        is_store = IMetadataStore.providedBy(opened) or ILedgerStore.providedBy(opened)
        return intercept_calls(opened, self._connection) if is_store else opened


def _name_of(name: str, arguments: tuple[Any, ...]) -> str:
    """Return the name of a call, with the kind of a step that only some stores make."""
    step = arguments[0] if arguments else None
    if not isinstance(step, Step) or step.is_of_records:
        return name
    return STEP if step.intent is None else FIRST_APPEND


async def steps_for(client: Client) -> int:
    """Return how many joint steps a transaction makes: one where the stores can, otherwise none."""
    coordinator = IJointCoordinator(await client.host.coordinator(), None)
    return int(coordinator is not None and coordinator.has_one_database)
