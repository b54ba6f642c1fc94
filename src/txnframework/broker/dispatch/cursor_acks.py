"""Writing of acknowledgments outside transactions to a cursor, in groups."""

from __future__ import annotations

import asyncio

from txnframework.environment import Environment
from txnframework.interfaces import ICursor
from txnframework.model.acks import Ack
from txnframework.runtime.tasks import start_task


class CursorAckWriter:
    """
    Writes acknowledgments to the cursor in groups; ``write`` returns when they are durable.

    One write is in progress at a time. Acknowledgments that arrive meanwhile share the next write, as do those that
    arrive within ``delay_ms`` of the first of them.
    """

    def __init__(self, cursor: ICursor, environment: Environment, delay_ms: int) -> None:
        self._cursor = cursor
        self._environment = environment
        self._delay_ms = delay_ms
        self._gathered: list[tuple[int, tuple[Ack, ...]]] = []
        self._written: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def write(self, incarnation: int, acks: tuple[Ack, ...]) -> None:
        """
        Make acknowledgments durable; those of an incarnation other than the cursor's have no effect.

        After an error or a cancellation they may be durable or not; writing them again is safe.

        :raises SubscriptionNotFound: the subscription was deleted.
        """
        self._gathered.append((incarnation, acks))
        if self._written is None:
            self._written = asyncio.get_running_loop().create_future()
        written = self._written
        if self._task is None:
            self._task = start_task(self._run())
        await asyncio.shield(written)

    async def finish(self) -> None:
        """Wait for the writes in progress."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            while self._written is not None:
                if self._delay_ms:
                    await self._environment.sleep_until(self._environment.now_ms() + self._delay_ms)
                written, self._written = self._written, None
                gathered, self._gathered = self._gathered, []
                try:
                    await self._apply(gathered)
                except Exception as error:
                    written.set_exception(error)
                    written.exception()  # marks it as retrieved, because the callers may have been cancelled
                else:
                    written.set_result(None)
        finally:
            self._task = None

    async def _apply(self, gathered: list[tuple[int, tuple[Ack, ...]]]) -> None:
        incarnations = sorted({incarnation for incarnation, _ in gathered})
        for incarnation in incarnations:
            acks = tuple(ack for its, some in gathered if its == incarnation for ack in some)
            if not await self._cursor.apply(incarnation, acks, None):
                await self._cursor.load()  # raises if the cursor was deleted; after a seek, they have no effect
