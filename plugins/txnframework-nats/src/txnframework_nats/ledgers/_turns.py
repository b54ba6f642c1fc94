"""
How processes that write to one log at the same time take turns.

Each record is stored directly behind what its process has read. So of several processes that write at the same time one
succeeds, and the others have read and tried in vain. Once a process was refused, it sends the others a message when it
wants a turn, and when its turn is over, on a subject that the servers do not store. Each process orders the turns by
the arrival of these messages. A process that is late, or has died, loses its turn.

Turns decide nothing: a process that knows no turns, or another order of them, is refused and tries again. What waits
for another process here waits by the clock of the environment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from txnframework.environment import Environment
from txnframework.errors import TxnFrameworkError
from txnframework.runtime.backoff import Backoff
from txnframework.runtime.tasks import first_completed, start_task
from txnframework_nats.connection._connection import NatsConnection
from txnframework_nats.ledgers._records import Asked, LogRecord

_PAUSE_MS_MAX = 1_000
_ASKED_HOLD_MS = 30
_HOLD_MS = 100
_HOLD_MS_MAX = 1_000
_HOLD_ROUNDS = 10
_VAIN_TURNS = 3
_BUSY_RECORDS = 4
_TURN_RECORDS = 4
_TURN_PAUSE_S = 0.005
_BUSY_PAUSE_S = 0.02
_QUIET_S = 2.0
_NAME_BITS = 64
_QUEUE_MAX = 1_000
_WANTED, _OVER = b"w", b"o"


class TurnQueue:
    """
    The turns of the writers of one log, as this process knows them.

    ``subject``: where the writers tell each other. A process listens there while it stores many records, and from a
    refusal on, until it has not written for some seconds. As long as it hears no other one, it says nothing.
    """

    def __init__(self, environment: Environment, connection: NatsConnection, subject: str) -> None:
        self._environment = environment
        self._connection = connection
        self._subject = subject
        self._name = f"{environment.random_bits(_NAME_BITS):016x}".encode()
        self._round_ms = 1.0
        self._asked = b""
        self._last: Asked | None = None
        self._queue: dict[bytes, None] = {}
        self._moved = asyncio.Event()
        self._subscription: Subscription | None = None
        self._heard_s = -_QUIET_S
        self._stored_s = 0.0
        self._in_a_row = 0
        self._leaving: asyncio.TimerHandle | None = None
        self._ends: asyncio.TimerHandle | None = None
        self._stored = 0
        self._ending: asyncio.Task[None] | None = None

    def measure(self, round_s: float) -> None:
        """Take note of the time that storing a record took."""
        self._round_ms = (self._round_ms + 1_000 * round_s) / 2
        now_s = asyncio.get_running_loop().time()
        self._in_a_row = self._in_a_row + 1 if now_s - self._stored_s < round_s + _BUSY_PAUSE_S else 0
        self._stored_s = now_s

    def applied(self, content: LogRecord) -> None:
        """Take note of the last record of the log."""
        self._last = content if isinstance(content, Asked) else None

    async def wait(self) -> bool:
        """Wait until it is this process's turn; return whether others may have written in the meantime."""
        if self._subscription is None:
            last, self._last = self._last, None
            if last is not None and last.token != self._asked:
                # Another process was refused again and again, because this one did not hear it.
                await self._join()
                self._heard_s = asyncio.get_running_loop().time()
                await self._sleep(min(last.hold_ms, _ASKED_HOLD_MS))
            elif self._in_a_row >= _BUSY_RECORDS:
                await self._join()
            else:
                return False
        self._stay()
        if self._ends is not None:
            # It is still this process's turn: the next record follows without reading.
            self._ends.cancel()
            self._ends = None
            return False
        if not self._others_write:
            return False
        await self._tell(_WANTED)
        while (ahead := self._ahead()) is not None or self._name not in self._queue:
            self._moved.clear()
            moved = await first_completed(self._moved.wait(), self._sleep(self._hold_ms)) == 0
            if moved or ahead != self._ahead():
                continue
            if ahead is None:
                break  # The own message is late, or lost.
            # Crash window: the process ahead may be storing its record now. Then this one is refused.
            self._queue.pop(ahead, None)
        return True

    async def over(self) -> None:
        """Tell the others that a record of this process is stored, unless some more are in its turn."""
        if self._subscription is None or not self._others_write:
            return
        self._stored += 1
        if self._stored < _TURN_RECORDS:
            self._ends = asyncio.get_running_loop().call_later(_TURN_PAUSE_S, self._end_unused)
        else:
            await self._end()

    async def refused(self, refusals: int) -> None:
        """Take part in the turns; if that does not help, wait a little."""
        if self._subscription is None:
            await self._join()
            self._heard_s = asyncio.get_running_loop().time()
            return
        await self._end()
        if refusals > _VAIN_TURNS:
            await Backoff(self._environment, max(1, round(self._round_ms)), _PAUSE_MS_MAX).pause(refusals)

    async def pause_for_one(self) -> None:
        """Wait until a record that another process is storing is probably stored."""
        await self._sleep(max(1, round(self._round_ms)))

    async def ask(self, token: bytes, store: Callable[[Asked], Awaitable[None]]) -> None:
        """
        Ask in the log that the others listen, and wait a moment.

        Without this, a process that was never refused would keep out the others, and also a seal.
        """
        self._asked = token
        await store(Asked(token, _ASKED_HOLD_MS))

    def close(self) -> None:
        """Listen no more."""
        for timer in (self._leaving, self._ends):
            if timer is not None:
                timer.cancel()
        self._ends = None
        self._leave()

    @property
    def _others_write(self) -> bool:
        return asyncio.get_running_loop().time() - self._heard_s < _QUIET_S

    @property
    def _hold_ms(self) -> int:
        return min(max(_HOLD_MS, round(_HOLD_ROUNDS * self._round_ms)), _HOLD_MS_MAX)

    def _ahead(self) -> bytes | None:
        """Return the process whose turn it is; None if it is this one, or if no process wants one."""
        first = next(iter(self._queue), None)
        return None if first == self._name else first

    async def _join(self) -> None:
        """Listen to the others; without a connection, writing fails anyway."""
        try:
            self._subscription = await self._connection.subscribe(self._hear, self._subject)
        except TxnFrameworkError:
            return
        self._stay()

    def _stay(self) -> None:
        """Listen for some more time."""
        if self._leaving is not None:
            self._leaving.cancel()
        self._leaving = asyncio.get_running_loop().call_later(_QUIET_S, self._leave)

    def _leave(self) -> None:
        self._leaving = None
        self._queue.clear()
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            self._ending = start_task(self._connection.unsubscribe(subscription))

    async def _end(self) -> None:
        self._stored = 0
        self._queue.pop(self._name, None)
        await self._tell(_OVER)

    def _end_unused(self) -> None:
        """End a turn that its process does not use."""
        self._ends = None
        self._ending = start_task(self._end())

    async def _tell(self, what: bytes) -> None:
        await self._connection.send(self._subject, what + self._name)

    async def _hear(self, message: Msg) -> None:
        """Take note of a message; it only changes which process waits, and never what is stored."""
        what, name, ahead = message.data[:1], message.data[1:], self._ahead()
        if name != self._name:
            self._heard_s = asyncio.get_running_loop().time()
        if what == _WANTED and len(self._queue) < _QUEUE_MAX:
            self._queue[name] = None
        elif what == _OVER:
            self._queue.pop(name, None)
        if name == self._name or ahead != self._ahead():
            self._moved.set()

    async def _sleep(self, by_ms: int) -> None:
        await self._environment.sleep_until(self._environment.now_ms() + by_ms)
