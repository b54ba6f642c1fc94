"""Simultaneous appends of many callers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from txnframework.errors import LedgerClosed, OutcomeUnknown
from txnframework.interfaces import IManagedLedger
from txnframework.model import EARLIEST, Append, Appended, Branch, EntryRange, Limit, TxnID
from txnframework.testing import VirtualEnvironment
from txnframework.testing.clock import run_ready
from txnframework.testing.connection import StoreConnection, intercept_calls
from txnframework_legacy.buffer.group_append import GroupAppender
from txnframework_memory.space import MemorySpace

Answer = asyncio.Task[tuple[Appended, ...]]


@dataclass(eq=False)
class Topic:
    ledger: IManagedLedger
    connection: StoreConnection
    together: GroupAppender
    open_ledger_id: int

    def begin(self, *texts: bytes, ledger_id: int | None = None, branch: Branch | None = None) -> Answer:
        entries = tuple(Append(text, 1, branch) for text in texts)
        where = self.open_ledger_id if ledger_id is None else ledger_id
        return asyncio.ensure_future(self.together.append(entries, where))

    async def read(self) -> list[bytes]:
        upto = (await self.ledger.tail()).last_confirmed
        return [entry.data for entry in await self.ledger.read(EntryRange(EARLIEST, upto), Limit(100))]


@asynccontextmanager
async def opened(entries_max: int = 100, bytes_max: int = 1_000) -> AsyncIterator[Topic]:
    connection = StoreConnection()
    ledgers = await MemorySpace(VirtualEnvironment()).open_ledgers()
    ledger = intercept_calls(await ledgers.create("topic"), connection)
    yield Topic(ledger, connection, GroupAppender(ledger, entries_max, bytes_max), (await ledger.tail()).open_ledger_id)
    connection.restore()
    await ledgers.close()


@pytest.fixture
def options() -> dict[str, int]:
    """The limits of the appender; {}: so high that they do not matter."""
    return {}


@pytest.fixture
async def topic(options: dict[str, int]) -> AsyncIterator[Topic]:
    async with opened(**options) as topic:
        yield topic


async def test_what_comes_meanwhile_goes_together(topic: Topic) -> None:
    """A single append is sent at once.

    Those that arrive meanwhile go as one call, in order, each with its own result.
    """
    hold = topic.connection.hold(1)
    calls = [topic.begin(b"a"), topic.begin(b"b", b"c"), topic.begin(b"d")]
    await hold.reached.wait()
    await run_ready()
    assert topic.connection.writes == 1
    topic.connection.restore()
    found = [await call for call in calls]
    places = [[one.position.entry_id for one in appended] for appended in found]
    assert (places, await topic.read()) == ([[0], [1, 2], [3]], [b"a", b"b", b"c", b"d"])
    assert topic.connection.writes == 2
    await topic.begin(b"e")
    assert topic.connection.writes == 3


@pytest.mark.parametrize("options", [{"entries_max": 3, "bytes_max": 10}])
async def test_a_call_is_bounded(topic: Topic) -> None:
    """A call is limited by entries and by bytes, unless one append is larger; it has one ledger."""
    hold = topic.connection.hold(1)
    first = topic.begin(b"first")
    await hold.reached.wait()
    texts = (b"a", b"b", b"c", b"d", b"x" * 50, b"y" * 7, b"z" * 7)
    calls = [*(topic.begin(text) for text in texts), topic.begin(b"e", ledger_id=topic.open_ledger_id + 1)]
    await run_ready()
    topic.connection.restore()
    await asyncio.gather(first, *calls[:-1])
    with pytest.raises(LedgerClosed):
        await calls[-1]
    assert await topic.read() == [b"first", *texts]
    assert topic.connection.writes == 1 + len(["a b c", "d", "x", "y", "z", "e"])


async def test_what_the_ledger_says_all_are_told(topic: Topic) -> None:
    """If the ledger was closed or the reply was lost, every append of the call gets that error; later ones continue."""
    for closed in (False, True):
        hold = topic.connection.hold(1)
        calls = [topic.begin(b"first"), topic.begin(b"a"), topic.begin(b"b")]
        await hold.reached.wait()
        await run_ready()
        if closed:
            await topic.ledger.roll()
            topic.connection.restore()
        else:
            topic.connection.lose(1)
            hold.go.set()
        found = await asyncio.gather(*calls, return_exceptions=True)
        expected = LedgerClosed if closed else OutcomeUnknown
        assert [isinstance(one, expected) for one in found] == [closed, True, True]
        topic.connection.restore()
    await topic.begin(b"next", ledger_id=(await topic.ledger.tail()).open_ledger_id)


async def test_one_that_is_refused_is_refused_alone(topic: Topic) -> None:
    """If the ledger refuses one entry, the other entries of the call do not fail."""
    hold = topic.connection.hold(1)
    first = asyncio.ensure_future(topic.together.append((Append(b"first"),), None))
    await hold.reached.wait()
    branch = Branch(TxnID(1 << 15, 1))
    some = ((Append(b"a"),), (Append(b"refused", 1, branch),), (Append(b"b"),))
    calls = [asyncio.ensure_future(topic.together.append(entries, None)) for entries in some]
    await run_ready()
    topic.connection.restore()
    await first
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(one, ValueError) for one in found] == [False, True, False]
    assert await topic.read() == [b"first", b"a", b"b"]


async def test_given_up_while_it_waits(topic: Topic) -> None:
    """An append cancelled before its turn is not made; cancelling the running one does not block others."""
    hold = topic.connection.hold(1)
    calls = [topic.begin(b"first"), topic.begin(b"a"), topic.begin(b"b")]
    await hold.reached.wait()
    await run_ready()
    calls[0].cancel()
    calls[1].cancel()
    topic.connection.restore()
    await asyncio.gather(*calls, return_exceptions=True)
    assert (await topic.read())[-1:] == [b"b"]
    assert b"a" not in await topic.read()
