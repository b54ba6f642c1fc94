"""Base class of the transaction buffers of the family."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, TypeVar

from txnframework.errors import Closed, TransactionNotFound
from txnframework.model import Branch, Position, State, Tail, Visibility
from txnframework.plugin import SegmentContext
from txnframework.runtime.tasks import first_completed, start_task

R = TypeVar("R")


class LogBuffer(ABC):
    """
    Base class of a buffer that replays its topic: recovery, waiting for readable entries, and closing.

    All of its state can be read again from the stores.
    """

    def __init__(self, context: SegmentContext) -> None:
        self.segment: str = context.segment
        self._topic_ledger = context.ledger
        self._coordinator = context.coordinator
        self._recovering = asyncio.Lock()
        self._is_recovered = False
        self._closed = asyncio.Event()

    @abstractmethod
    async def _catch_up(self) -> Tail:
        """Read the topic to its end; return its tail at the call."""

    @abstractmethod
    def _readable(self) -> Position:
        """Return the position up to which all entries that were read are decided."""

    async def _read_first(self) -> None:
        """Read the topic to its end for the first time; a buffer may verify it before."""
        await self._catch_up()

    async def recover(self) -> Position:
        """
        Read the topic to its end, starting at the last snapshot; later calls return immediately.

        :raises ConfigurationError: the topic was written through another buffer.
        """
        self._require_open()
        async with self._recovering:
            if not self._is_recovered:
                await self._unless_closed(self._read_first())
                self._is_recovered = True
        self._require_open()
        return self._readable()

    async def max_read_position(self) -> Position:
        """Return the position up to which all entries are decided, after reading to the end."""
        await self.recover()
        await self._catch_up()
        return self._readable()

    async def advanced(self, beyond: Position) -> Position:
        """
        Wait until more entries are decided or, on a sealed topic, all are.

        A marker grows the ledger and so wakes the watch.
        """
        await self.recover()
        watch = await self._topic_ledger.watch()
        try:
            while True:
                tail = await self._catch_up()
                self._require_open()
                readable = self._readable()
                if readable > beyond or (tail.sealed and readable >= tail.last_confirmed):
                    return readable
                await self._unless_closed(watch.changed())
        finally:
            await watch.close()

    async def finished(self, at: Position) -> bool:
        """Return whether the topic is sealed and all of its entries are at or before ``at``."""
        await self.recover()
        tail = await self._topic_ledger.tail()
        return tail.sealed and tail.last_confirmed <= at

    async def _describe_visibility(self, branch: Branch) -> Visibility:
        """Return the visibility of a branch by its coordinator; a forgotten transaction counts as committed."""
        try:
            transaction = await self._coordinator.describe(branch.txn_id)
        except TransactionNotFound:
            return Visibility.COMMITTED
        if transaction.state is State.OPEN:
            return Visibility.OPEN
        return Visibility.COMMITTED if transaction.counts(branch.number) else Visibility.ABORTED

    def _require_open(self) -> None:
        if self._closed.is_set():
            raise Closed(f"the buffer of {self.segment} was closed")

    async def _unless_closed(self, work: Coroutine[Any, Any, R]) -> R:
        """Return the result of ``work``; cancel it and raise ``Closed`` when the buffer is closed."""
        task = start_task(work)
        if await first_completed(task, self._closed.wait()) != 0:
            self._require_open()
        return task.result()
