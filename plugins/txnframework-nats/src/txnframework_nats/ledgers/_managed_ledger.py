"""One handle of a managed ledger."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from zope.interface import implementer

from txnframework.errors import Closed
from txnframework.interfaces import IManagedLedger, IWatch
from txnframework.model import (
    Append,
    Appended,
    Branch,
    EntryRange,
    LedgerEntry,
    LedgerSummary,
    Limit,
    MessageCount,
    Position,
    Tail,
    WindowState,
)
from txnframework_nats.ledgers._decisions import decide_trim
from txnframework_nats.ledgers._log import Change
from txnframework_nats.ledgers._open_logs import OpenLog, OpenLogs, new_token
from txnframework_nats.ledgers._records import Forgotten, Rolled, Sealed
from txnframework_nats.ledgers._state import LedgerState
from txnframework_nats.ledgers._watches import TailWatch

T = TypeVar("T")


_REFUSALS_MAX = 2
"""A seal, a roll or a trim that was outrun so often asks the writers to wait."""


@implementer(IManagedLedger)
class NatsManagedLedger:
    """A handle of a managed ledger; any number of handles in any number of processes may append and read."""

    location: object = None
    reference: object = None

    def __init__(self, logs: OpenLogs, opened: OpenLog) -> None:
        self.name = opened.log.name
        self._logs = logs
        self._opened = opened
        self._armed: set[TailWatch] = set()
        self._is_closed = False

    async def append(self, entries: tuple[Append, ...], ledger_id: int | None) -> tuple[Appended, ...]:
        """Append durably, in order, adjacent, to ledger ``ledger_id`` only."""
        self._require_open()
        if ledger_id is None and any(entry.branch is not None for entry in entries):
            raise ValueError("an entry with a branch is appended to the ledger that its intent names")
        if not entries:
            return ()
        appended = await self._opened.appender.append(entries, ledger_id)
        self._logs.keep_house(self._opened)
        return appended

    async def find_sequence(self, producer: str, sequence: int) -> Appended | None:
        """Return the valid copy of this sequence, or None."""
        return (await self._state()).find_sequence(producer, sequence)

    async def remembered(self, producer: str, sequence: int) -> WindowState:
        """Return what the ledger remembers of a producer, and how many of its sequences are above the given one."""
        return (await self._state()).remembered(producer, sequence)

    async def tail(self) -> Tail:
        """Return last confirmed position, open ledger and sealed flag, read at one moment."""
        return (await self._state()).tail()

    async def read(self, entries: EntryRange, limit: Limit) -> tuple[LedgerEntry, ...]:
        """Return the first entries of the range in order."""
        self._require_open()
        return await self._opened.reader.read(entries, limit)

    async def count(self, entries: EntryRange, messages_max: int) -> MessageCount:
        """Return how far ``messages_max`` messages reach into the range."""
        self._require_open()
        return await self._opened.reader.count(entries, messages_max)

    async def ledgers(self, after: int, items_max: int) -> tuple[LedgerSummary, ...]:
        """Return the first remaining ledgers after a ledger id."""
        state = await self._state()
        state.require_present()
        return tuple(one.summary() for one in state.ledgers if one.ledger_id > after)[:items_max]

    async def find_time(self, published_ms: int) -> Position:
        """Return the position before the first entry that was appended at or after ``published_ms``."""
        self._require_open()
        return await self._opened.reader.find_time(published_ms)

    async def roll(self) -> Tail:
        """Close the open ledger permanently and open the next, unless it is sealed or empty."""

        def decide(state: LedgerState) -> Change[None]:
            state.require_present()
            nothing = state.sealed or not state.open.entries
            return Change(None, None if nothing else Rolled(new_token()))

        await self._change(decide)
        return self._opened.log.state.tail()

    async def seal(self) -> Tail:
        """Refuse appends permanently; may be repeated, with the same result."""

        def decide(state: LedgerState) -> Change[None]:
            state.require_present()
            return Change(None, None if state.sealed else Sealed(new_token()))

        await self._change(decide)
        return self._opened.log.state.tail()

    async def trim(self, ledger_id: int, aborted: frozenset[Branch]) -> int:
        """Remove closed ledgers below ``ledger_id``, in a bounded step; return the first remaining ledger."""
        silent_since_ms = self._logs.environment.now_ms() - self._logs.options.producer_idle_ms

        def decide(state: LedgerState) -> Change[bool]:
            record = decide_trim(state, ledger_id, aborted, silent_since_ms, new_token(), self._logs.message_bytes)
            return Change(isinstance(record, Forgotten), record)

        # Crash window: some aborted copies are forgotten, and no ledger is removed. The next trim continues.
        while await self._change(decide):
            pass
        # Crash window: the ledgers are removed for every reader, and their messages are there still. The next trim
        # removes them.
        await self._logs.remove_trimmed(self._opened)
        state = self._opened.log.state
        state.require_present()
        return state.ledgers[0].ledger_id

    async def watch(self) -> IWatch:
        """Return an armed watch on the tail."""
        self._require_open()
        watch = await self._logs.arm(self._opened)
        if self._is_closed:
            watch.end()
        self._require_open()
        self._armed = {armed for armed in self._armed if not armed.is_closed} | {watch}
        return watch

    async def close(self) -> None:
        """Close the handle; running appends return their results. May be repeated."""
        self._is_closed = True
        for watch in tuple(self._armed):
            watch.end()
        self._armed.clear()

    async def _state(self) -> LedgerState:
        """Return the state with everything that was confirmed before the call."""
        self._require_open()
        log = self._opened.log
        await log.refresh()
        return log.state

    @property
    def hints(self) -> str:
        """The subject on which the servers tell of records of this ledger."""
        return self._opened.shard.wakes(self._opened.token)

    async def _change(self, decide: Callable[[LedgerState], Change[T]]) -> T:
        self._require_open()
        return await self._logs.finish(self._opened.log.change(decide, _REFUSALS_MAX))

    def _require_open(self) -> None:
        if self._is_closed or self._logs.is_closed:
            raise Closed(f"ledger {self.name} was closed")
