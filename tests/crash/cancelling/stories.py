"""A story: one public coroutine, its preparation, and the required state after its cancellation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from crash_story import Due

from cancelling.stage import FAMILIES, Stage
from txnframework import Client, State
from txnframework.errors import TxnFrameworkError


class Story(ABC):
    """
    One call.

    ``covers``: the public coroutines that it calls, as ``Class.method``. ``sends``, ``acks``: the values that exist,
    or are done, if it has happened, outside transactions; until it was repeated they may be. ``ends``: it ends the
    transaction of the stage, so that once it was begun it is decided soon. ``reports``: what a repetition may raise.
    ``sampled``: the families in which the quick run includes it: those that it may affect.
    ``leaves_open``: a transaction is open after it, by intention, so readers wait.
    """

    covers: ClassVar[tuple[str, ...]] = ()
    families: ClassVar[tuple[str, ...]] = FAMILIES
    sends: ClassVar[tuple[bytes, ...]] = ()
    acks: ClassVar[tuple[bytes, ...]] = ()
    ends: ClassVar[bool] = False
    leaves_open: ClassVar[bool] = False
    sampled: ClassVar[tuple[str, ...]] = ("metadata",)
    reports: ClassVar[tuple[type[TxnFrameworkError], ...]] = ()

    @property
    def name(self) -> str:
        """Its name."""
        return type(self).__name__

    async def arrange(self, stage: Stage) -> None:  # noqa: B027 - most, not all, have something to do here
        """Bring the victim to where the call begins."""

    @abstractmethod
    async def call(self, stage: Stage) -> None:
        """Make the call that is cancelled."""

    async def repeat(self, stage: Stage) -> None:
        """Repeat the call: it succeeds, or its error says clearly why not."""
        try:
            await self.call(stage)
        except self.reports:
            return

    async def leave(self, stage: Stage) -> None:
        """Release the victim's objects, as a program does at its end."""
        if hasattr(stage, "txn") and stage.txn.state is State.OPEN and await stage.outcome(stage.txn) is State.OPEN:
            await stage.txn.abort()
        if stage.consumer is not None:
            await stage.consumer.close()

    def may_happen(self, stage: Stage) -> None:
        """Record what may exist from now on."""
        stage.sent |= dict.fromkeys(self.sends, Due.MAY)
        stage.acked |= dict.fromkeys(self.acks, Due.MAY)

    def has_happened(self, stage: Stage) -> None:
        """Record what must exist, because the repetition was confirmed."""
        stage.sent |= dict.fromkeys(self.sends, Due.MUST)
        stage.acked |= dict.fromkeys(self.acks, Due.MUST)

    async def check_soon(self, stage: Stage) -> None:
        """Check from another process, soon after the cancellation."""
        if self.ends:

            async def decided() -> bool:
                return await stage.outcome(stage.txn) is not State.OPEN

            await stage.soon(decided, lambda: "the transaction to be decided")

    async def check_visible(self, stage: Stage, value: bytes) -> None:
        """Check that a new message can be read soon."""
        await stage.check_visible(value)

    async def check(self, stage: Stage) -> None:
        """Check from another process at the end."""
        await stage.check_topic()

    async def check_subscription(self, stage: Stage, client: Client, at_once: bool) -> None:
        """Check that a client can consume."""
        await stage.check_subscription(client, at_once)


def described(stories: Iterable[Story]) -> set[str]:
    """Return the public coroutines that stories tell of."""
    return {name for story in stories for name in story.covers}
