"""The transactions of a handler loop: the next one begins while the current one commits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from txnframework.client._handlers.transactions import EARLY_MS_MAX, HandlerTransactions
from txnframework.errors import Closed, InvalidInput, Unavailable
from txnframework.model.transactions import Begin
from txnframework.testing.clock import VirtualEnvironment


class Failing(Exception):
    """A handler that fails."""


class Made:
    """A transaction that records its operations."""

    def __init__(self, number: int, events: list[str], failing: set[int]) -> None:
        self._number, self._events, self._failing = number, events, failing
        self._is_early = False

    def begin_early(self) -> None:
        self._is_early = True
        self._note("begins early")

    def give_up_begin(self) -> None:
        self._note("given up")

    async def begin(self) -> None:
        if self._number in self._failing:
            self._note("fails to begin")
            raise Unavailable("the store is away")
        if not self._is_early:
            self._note("begins")

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        self._note("aborts" if error is not None else "commits")

    def _note(self, what: str) -> None:
        self._events.append(f"{self._number} {what}")


class Calls:
    """Calls of a handler: ``events`` are those of their transactions, in order."""

    def __init__(self, needed: int = 1, timeout_ms: int = 60_000) -> None:
        self.clock = VirtualEnvironment()
        self.events: list[str] = []
        self.needed = needed
        self.domain = "segment"
        self.domain_error: Exception | None = None
        self.failing: set[int] = set()
        self._made = 0
        self.transactions = HandlerTransactions(
            self._create, self._domain, lambda: self.needed, self.clock, Begin(timeout_ms, "")
        )

    async def call(self, error: Exception | None = None) -> None:
        async with self.transactions.open():
            if error is not None:
                raise error

    def _create(self, domain: str) -> Any:
        assert domain == self.domain
        self._made += 1
        return Made(self._made, self.events, self.failing)

    def _domain(self) -> str:
        if self.domain_error is not None:
            raise self.domain_error
        return self.domain


def test_the_next_transaction_begins_before_the_commit() -> None:
    """The next one begins only while messages wait."""
    calls = Calls()

    async def run() -> None:
        await calls.call()
        await calls.call()
        calls.needed = 0
        await calls.call()
        await calls.call()

    asyncio.run(run())
    assert calls.events == [
        "1 begins",
        "2 begins early",
        "1 commits",
        "3 begins early",
        "2 commits",
        "3 commits",
        "4 begins",
        "4 commits",
    ]


def test_there_are_no_more_early_ones_than_are_needed() -> None:
    """Each of several concurrent calls may have one early transaction."""
    calls = Calls(needed=2)

    async def run() -> None:
        async with calls.transactions.open(), calls.transactions.open(), calls.transactions.open():
            calls.events.clear()

    asyncio.run(run())
    assert calls.events == ["4 begins early", "3 commits", "5 begins early", "2 commits", "1 commits"]


def test_a_call_that_fails_begins_nothing_early() -> None:
    """After a failure, the loop may have to wait, for example for a redelivery."""
    calls = Calls()
    with pytest.raises(Failing):
        asyncio.run(calls.call(Failing()))
    assert calls.events == ["1 begins", "1 aborts"]


def test_what_is_not_used_is_given_up() -> None:
    """An early transaction is aborted when the loop waits for messages or ends."""
    calls = Calls()

    async def run() -> None:
        await calls.call()
        calls.transactions.messages_awaited()
        await calls.call()
        calls.transactions.messages_received()
        await calls.call()
        calls.transactions.give_up()

    asyncio.run(run())
    assert calls.events == [
        "1 begins",
        "2 begins early",
        "1 commits",
        "2 given up",
        "3 begins",
        "3 commits",
        "4 begins",
        "5 begins early",
        "4 commits",
        "5 given up",
    ]


@pytest.mark.parametrize(
    ("timeout_ms", "age_ms", "is_used"),
    [(60_000, EARLY_MS_MAX, True), (60_000, EARLY_MS_MAX + 1, False), (500, 50, True), (500, 51, False)],
)
def test_an_old_transaction_is_not_used(timeout_ms: int, age_ms: int, is_used: bool) -> None:
    """The handler of an old transaction would have less time before the timeout."""
    calls = Calls(timeout_ms=timeout_ms)

    async def run() -> None:
        await calls.call()
        calls.needed = 0
        calls.events.clear()
        await calls.clock.advance(age_ms)
        await calls.call()

    asyncio.run(run())
    assert calls.events == (["2 commits"] if is_used else ["2 given up", "3 begins", "3 commits"])


def test_an_old_transaction_is_given_up_although_no_call_needs_one() -> None:
    """Calls may need no transaction for long, if one step is a whole transaction."""
    calls = Calls()

    async def run() -> None:
        await calls.call()
        calls.events.clear()
        for age_ms in (EARLY_MS_MAX, 1):
            await calls.clock.advance(age_ms)
            calls.transactions.messages_received()
            calls.events.append("received")

    asyncio.run(run())
    assert calls.events == ["received", "2 given up", "received"]


def test_a_topic_that_migrates() -> None:
    """A transaction of the former domain is not used."""
    calls = Calls()

    async def run() -> None:
        await calls.call()
        calls.needed, calls.domain = 0, "persistent"
        calls.events.clear()
        await calls.call()

    asyncio.run(run())
    assert calls.events == ["2 given up", "3 begins", "3 commits"]


def test_an_early_begin_that_fails_is_repeated() -> None:
    """Only the error of the second attempt is raised."""
    calls = Calls()

    async def run() -> None:
        await calls.call()
        calls.needed = 0
        calls.failing.add(2)
        calls.events.clear()
        await calls.call()
        calls.failing.add(4)
        with pytest.raises(Unavailable):
            await calls.call()

    asyncio.run(run())
    assert calls.events == ["2 fails to begin", "3 begins", "3 commits", "4 fails to begin"]


@pytest.mark.parametrize("error", [Closed("the client was closed"), InvalidInput("no transactions over these topics")])
def test_a_commit_is_not_disturbed(error: Exception) -> None:
    """If a transaction cannot begin early, the next call raises the error."""
    calls = Calls()

    async def run() -> None:
        async with calls.transactions.open():
            calls.domain_error = error
        with pytest.raises(type(error)):
            await calls.call()

    asyncio.run(run())
    assert calls.events == ["1 begins", "1 commits"]
