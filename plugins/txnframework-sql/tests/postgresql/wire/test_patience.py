"""How long replies are waited for, by the looks of one timer; what is done then is in ``test_failures``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from txnframework_sql.postgresql._patience import Patience

TIMEOUT_S = 8.0
LOOK_S = 2.0


class Timers:
    """The timers of a loop, of which there is one at most here, let off by hand."""

    def __init__(self) -> None:
        self.set: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timers:
        """As that of a loop."""
        self.set.append((delay_s, callback))
        return self

    def cancel(self) -> None:
        """Cancel it."""
        self.set.clear()

    def let_off(self) -> float:
        """Let it off; return its delay."""
        ((delay_s, callback),) = self.set
        self.set.clear()
        callback()
        return delay_s


def run(monkeypatch: pytest.MonkeyPatch, test: Callable[[Timers, Patience, list[str]], None]) -> None:
    """Run a test with timers of its own, and what was given up."""

    async def within() -> None:
        timers, given_up = Timers(), list[str]()
        monkeypatch.setattr(asyncio.get_running_loop(), "call_later", timers.call_later)
        test(timers, Patience(TIMEOUT_S, lambda: given_up.append("it")), given_up)

    asyncio.run(within())


def test_given_up_between_the_timeout_and_a_quarter_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever the statement was sent between two looks: four quarters pass after the first one, and then it ends."""

    def test(timers: Timers, patience: Patience, given_up: list[str]) -> None:
        patience.begin()
        waited_s = timers.let_off()
        while not given_up:
            assert not patience.is_over
            waited_s += timers.let_off()
        assert patience.is_over
        assert waited_s - LOOK_S == TIMEOUT_S
        assert timers.set == []

    run(monkeypatch, test)


def test_each_statement_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What came before does not count, however long it took, and however soon the next one follows."""

    def test(timers: Timers, patience: Patience, given_up: list[str]) -> None:
        for _ in range(3):
            patience.begin()
            for _ in range(4):
                timers.let_off()
            patience.end()
        assert given_up == []

    run(monkeypatch, test)


def test_no_timer_while_nothing_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look that finds nothing is the last one; the next statement sets one timer again, and others none."""

    def test(timers: Timers, patience: Patience, given_up: list[str]) -> None:
        for _ in range(2):
            for _ in range(10):
                patience.begin()
                patience.end()
            assert len(timers.set) == 1
            timers.let_off()
            assert timers.set == []
        assert given_up == []

    run(monkeypatch, test)


def test_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once closed there is no timer, also when somebody tries a statement all the same."""

    def test(timers: Timers, patience: Patience, given_up: list[str]) -> None:
        patience.begin()
        patience.close()
        assert timers.set == []
        patience.end()
        patience.begin()
        patience.close()
        assert timers.set == []
        assert given_up == []

    run(monkeypatch, test)


@pytest.mark.parametrize("breaks_off", [True, False])
def test_a_connection_leaves_nothing_behind(wire: Any, breaks_off: bool) -> None:
    """Neither one that is broken off nor one that is closed leaves a timer."""

    async def test() -> None:
        async with wire.connected() as connections, connections.lend() as connection:
            await connection.read("SELECT 1")
            assert connection._patience._timer is not None
            if breaks_off:
                connection.break_off()
            else:
                await connection.close()
            assert connection._patience._timer is None

    wire.run(test)
