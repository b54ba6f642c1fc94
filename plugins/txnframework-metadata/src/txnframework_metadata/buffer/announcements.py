"""Announced positions: the callers that wait for them, and the watches that wake the task that answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from txnframework.environment import Environment
from txnframework.errors import Closed
from txnframework.interfaces import IAppendedWatch, IManagedLedger, IMetadataStore, IValueWatch, IWatch
from txnframework.model.ids import TxnID
from txnframework.model.ledger import LedgerEntry
from txnframework.model.metadata import Key
from txnframework.model.paths import header_key
from txnframework.model.positions import Position
from txnframework.model.transactions import State, Transaction
from txnframework.runtime.tasks import start_task
from txnframework_metadata.buffer.segment_view import Following, SegmentView
from txnframework_metadata.records.headers import ended_in_value


class WatchListener:
    """
    An armed watch that calls ``woken`` when it fires, so that its owner can wait for other events too.

    The wait continues when another event arrives first, because cancelling and restarting a wait costs more than
    keeping it.
    """

    def __init__(self, watch: IWatch, woken: Callable[[], None]) -> None:
        self._watch = watch
        self._woken = woken
        self._wait: asyncio.Task[None] | None = None

    def listen(self) -> None:
        """Call ``woken`` when the watch fires, also for a change since it was last asked."""
        if self._wait is None:
            self._wait = start_task(self._watch.changed())
            self._wait.add_done_callback(lambda _: self._woken())

    @property
    def carries_values(self) -> bool:
        """Whether the watch may report the new value of the watched record."""
        return bool(IValueWatch.providedBy(self._watch))

    @property
    def value(self) -> bytes | None:
        """The value of the watched record at one of the changes last reported; None if unknown."""
        return self._watch.value if IValueWatch.providedBy(self._watch) else None

    @property
    def appended(self) -> tuple[LedgerEntry, ...] | None:
        """The entries last reported, if they are the only change of the watched tail; otherwise None."""
        return self._watch.appended if IAppendedWatch.providedBy(self._watch) else None

    def has_fired(self) -> bool:
        """Return True once after the watch has fired; raise the exception of its wait."""
        if self._wait is None or not self._wait.done():
            return False
        ended, self._wait = self._wait, None
        ended.result()
        return True

    async def pause(self) -> None:
        """Stop waiting until ``listen`` is called; no change is missed meanwhile."""
        wait, self._wait = self._wait, None
        if wait is not None:
            wait.cancel()
            await asyncio.gather(wait, return_exceptions=True)
            if not wait.cancelled():
                self._wait = wait  # the watch had fired

    async def close(self) -> None:
        """Close the watch."""
        await self.pause()
        await self._watch.close()


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    beyond: Position
    answer: asyncio.Future[Position]


@dataclass(frozen=True, slots=True)
class _Pin:
    """The open transaction known to hold back the max read position, and the watch on its header."""

    txn_id: TxnID
    key: Key
    header: WatchListener


class Announcements:
    """
    Wakes callers that wait for a position of one segment; one task follows the segment for all of them.

    The max read position moves in two ways. While an open transaction holds it back, it moves when that transaction
    ends. Only that header is watched, and headers are read again when the watch fires. Otherwise, it moves when the
    ledger grows. New intents only hold it back, and every reading finds the relevant ones. A change of the ledger that
    its watch reported meanwhile is handled once no transaction holds the position back.

    After the watches fired, the task may use a reading that another caller started, because the watches report every
    later change.
    """

    def __init__(
        self,
        view: SegmentView,
        ledger: IManagedLedger,
        store: IMetadataStore,
        environment: Environment,
        open_presumed_ms: int,
    ) -> None:
        self._view = view
        self._environment = environment
        self._open_presumed_ms = open_presumed_ms
        self._ledger = ledger
        self._store = store
        self._waiters: list[_Waiter] = []
        self._kicked = False
        self._moved = asyncio.Event()
        self._pin: _Pin | None = None
        # Whether watches on headers report the new value: known once the first one is armed.
        self._carries_values = False
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        view.listen(self._answer)

    def kick(self) -> None:
        """Wake the task because a transaction ended in this process; a watch would report that later."""
        self._kicked = True
        self._moved.set()

    def grown(self) -> None:
        """Wake the task because the ledger grew in this process, unless an open transaction holds the position back."""
        latest = self._view.latest
        if latest is None or latest.seen.pin is None:
            self.kick()

    async def beyond(self, position: Position) -> Position:
        """Return the announced position once it is beyond ``position``, or once it can never be."""
        if self._closed:
            raise Closed(f"the buffer of {self._view.segment} was closed")
        announced = self._view.announced
        if announced is not None and announced > position:
            return announced
        waiter = _Waiter(position, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        try:
            self._wanted.set()
            if self._task is None or self._task.done():
                self._task = start_task(self._follow())
            return await waiter.answer
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    async def close(self) -> None:
        """Stop following; waiting callers get Closed."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._unwatch()
        self._fail(Closed(f"the buffer of {self._view.segment} was closed"))

    async def _follow(self) -> None:
        """Read the segment after each possible change while callers wait; raise an error at those callers."""
        try:
            # Armed before the first reading, so that no change is missed between the two.
            grown = WatchListener(await self._ledger.watch(), self._moved.set)
            try:
                await self._follow_with(grown)
            finally:
                await grown.close()
                await self._unwatch()
        except Exception as error:
            # Last, with no await after it: a caller that arrives while the watches are closed sees this task as running
            # and relies on it. It would otherwise never be woken.
            self._fail(error)

    async def _follow_with(self, grown: WatchListener) -> None:
        """Follow the segment until an error is raised."""
        told = self._view.begun
        appended: tuple[LedgerEntry, ...] | None = None
        while True:
            await self._wanted.wait()
            pin = self._pin
            reading = None if pin is not None or self._kicked else self._view.begun_after(told)
            if reading is not None:
                self._answer()
            else:
                self._kicked = False
                if pin is None:
                    came, appended = appended, None
                    reading = await self._view.refresh(Following(self._watch, self._carries_values, came))
                else:
                    reading = await self._view.look_again(ended_in_value(pin.txn_id, pin.key, pin.header.value))
            if not self._waiters:
                self._wanted.clear()
                for listening in (grown, *([] if self._pin is None else [self._pin.header])):
                    await listening.pause()
                continue
            pinned_by = reading.seen.pin
            if pinned_by is None:
                await self._unwatch()
            else:
                await self._watch(pinned_by)
                if pinned_by not in (reading.followed, None if pin is None else pin.txn_id):
                    continue  # the transaction may have ended before its watch was armed
            is_told = await self._until_fired(grown if self._pin is None else self._pin.header, reading.is_presumed)
            appended = grown.appended if is_told and self._pin is None else None
            told = self._view.begun

    async def _watch(self, txn_id: TxnID) -> Transaction:
        """
        Watch the header of this transaction only.

        Return the report of the watch, see ``Following``.
        """
        pin = self._pin
        if pin is None or pin.txn_id != txn_id:
            await self._unwatch()
            key = header_key(txn_id)
            pin = _Pin(txn_id, key, WatchListener(await self._store.watch(key), self._moved.set))
            self._pin = pin
        self._carries_values = pin.header.carries_values
        ended = ended_in_value(txn_id, pin.key, pin.header.value)
        return ended or Transaction(txn_id, State.OPEN, deadline_ms=0, created_ms=0)

    async def _unwatch(self) -> None:
        """Close the watch on the header, if any."""
        if self._pin is not None:
            pin, self._pin = self._pin, None
            await pin.header.close()

    async def _until_fired(self, listening: WatchListener, is_presumed: bool) -> bool:
        """
        Wait until a watch fires or a call in this process asks for a reading; return whether it was the watch alone.

        A presumed state is read after a delay in any case.
        """
        late = start_task(self._presumed_for_long()) if is_presumed else None
        try:
            listening.listen()
            # Check both: events that arrive at the same moment are handled by the same reading.
            while not ((has_fired := listening.has_fired()) or self._kicked or (late is not None and late.done())):
                self._moved.clear()
                await self._moved.wait()
        finally:
            if late is not None:
                late.cancel()
        return has_fired and not self._kicked

    async def _presumed_for_long(self) -> None:
        await self._environment.sleep_until(self._environment.now_ms() + self._open_presumed_ms)
        self._moved.set()

    def _answer(self) -> None:
        """
        Answer callers whose position is announced.

        All callers get a result when the segment is sealed and decided to its end.
        """
        announced, reading = self._view.announced, self._view.latest
        if announced is None or reading is None:
            return
        over = reading.tail.sealed and announced >= reading.tail.last_confirmed
        for waiter in tuple(self._waiters):
            if over or announced > waiter.beyond:
                self._waiters.remove(waiter)
                if not waiter.answer.done():
                    waiter.answer.set_result(announced)

    def _fail(self, error: Exception) -> None:
        """Raise ``error`` at all waiting callers."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.answer.done():
                waiter.answer.set_exception(error)
