"""Waiting for announcements: nothing is read while nothing changes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from txnframework.errors import Closed
from txnframework.interfaces import IManagedLedger, IMetadataStore, IWatch
from txnframework.model.ids import TxnID
from txnframework.model.paths import header_key
from txnframework.model.positions import Position
from txnframework_metadata._segment_view import SegmentView
from txnframework_metadata._watching import close_all, first_of


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    beyond: Position
    answer: asyncio.Future[Position]


class Announcements:
    """
    Wakes those who wait for a position of one segment; one task follows the segment for all of them.

    How far may be read moves only in two ways: while an open transaction is in the way, by its end, so its header is
    watched and nothing else, and looked at again when the watch tells; otherwise by the growth of the ledger. New
    intents only ever hold it back, and every reading finds those that matter. What the ledger's watch told meanwhile it
    tells once nothing is in the way. A reading that somebody else took since the watches told something is as good as
    one of its own: what came after it they tell.
    """

    def __init__(self, view: SegmentView, ledger: IManagedLedger, store: IMetadataStore) -> None:
        self._view = view
        self._ledger = ledger
        self._store = store
        self._waiters: list[_Waiter] = []
        self._kicked = asyncio.Event()
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        view.listen(self._answer)

    def kick(self) -> None:
        """A transaction ended here, of which a watch would tell later: whoever waits looks now."""
        self._kicked.set()

    def grown(self) -> None:
        """The ledger grew here: whoever waits looks now, unless an open transaction is in the way anyway."""
        latest = self._view.latest
        if latest is None or latest.seen.pin is None:
            self._kicked.set()

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
                self._task = asyncio.ensure_future(self._follow())
            return await waiter.answer
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    async def close(self) -> None:
        """Stop following; whoever waits gets Closed."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._fail(Closed(f"the buffer of {self._view.segment} was closed"))

    async def _follow(self) -> None:
        """Read the segment whenever it may have moved and somebody waits; an error goes to those who wait."""
        watches: list[IWatch] = []
        try:
            try:
                await self._follow_with(watches)
            finally:
                await close_all(watches)
        except Exception as error:
            # Last, with nothing awaited after it: who comes while the watches are closed still finds this task running,
            # relies on it, and would otherwise never be told.
            self._fail(error)

    async def _follow_with(self, watches: list[IWatch]) -> None:
        """Follow until something fails; ``watches`` are those to be given back."""
        pin: tuple[TxnID, IWatch] | None = None
        # Armed before the first reading, so that no change falls between the two.
        grown = await self._ledger.watch()
        watches.append(grown)
        told = self._view.begun
        while True:
            await self._wanted.wait()
            reading = None if pin is not None or self._kicked.is_set() else self._view.begun_after(told)
            if reading is not None:
                self._answer()
            else:
                self._kicked.clear()
                reading = await (self._view.refresh(awaited=True) if pin is None else self._view.look_again())
            if not self._waiters:
                self._wanted.clear()
                continue
            pinned_by = reading.seen.pin
            if pin is not None and pin[0] != pinned_by:
                watches.remove(pin[1])
                await pin[1].close()
                pin = None
            if pin is None and pinned_by is not None:
                pin = (pinned_by, await self._store.watch(header_key(pinned_by)))
                watches.append(pin[1])
                continue  # it may have ended before its watch was armed
            moved = grown if pin is None else pin[1]
            await first_of([moved.changed(), self._kicked.wait()])
            told = self._view.begun

    def _answer(self) -> None:
        """Answer those whose position has come, and all when the segment is sealed and decided to its end."""
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
        """Tell everybody who waits."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.answer.done():
                waiter.answer.set_exception(error)
