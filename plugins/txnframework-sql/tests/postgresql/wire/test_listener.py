"""The reception of other clients' commits: none is missed, whatever happens to the listening connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from txnframework.errors import Closed, Unavailable
from txnframework.model import IndexEntry
from txnframework.testing import VirtualEnvironment, run_ready
from txnframework.testing.servers.proxy import Proxy, Side
from txnframework_sql.postgresql._listener import Listener
from txnframework_sql.postgresql._payloads import (
    ANYTHING_CHANGED,
    BYTES_MAX,
    PAYLOADS_MAX,
    changes_of,
    channel_of,
    payloads,
)
from txnframework_sql.postgresql._pool import Pool
from txnframework_sql.steps.statements import Change, LedgerChange, RecordChange

CHANNEL = "txnframework_wire"
NOTIFY = f"SELECT pg_notify('{CHANNEL}', payload) FROM unnest($1::text[]) payload"
HEARTBEAT_MS = 60_000
SOON_MS = 200


class Heard:
    """Records what a listener delivers."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.woken = 0
        self.parts: list[tuple[int, int]] = []
        self.armed: list[object] = [self]

    def wake(self, changes: Collection[Change]) -> None:
        self.changes.extend(changes)

    def wake_all(self) -> None:
        self.woken += 1

    def wake_part(self, part: int, parts: int) -> None:
        self.parts.append((part, parts))


@asynccontextmanager
async def listening(
    wire: Any, environment: VirtualEnvironment, heartbeat_ms: int = HEARTBEAT_MS
) -> AsyncIterator[tuple[Pool, Proxy, Listener, Heard]]:
    """Listen through a proxy; a reply may take ``heartbeat_ms`` of real time."""
    options = {"heartbeat_ms": heartbeat_ms, "connect_timeout_ms": 60_000, "connections_max": 1}
    async with wire.proxied(environment, **options) as (connections, proxy):
        heard = Heard()
        connections.listener.subscribe(heard)
        await connections.listener.listen()
        yield connections, proxy, connections.listener, heard


async def notify(wire: Any, *texts: str) -> None:
    await wire.ask(NOTIFY, list(texts))


async def test_what_others_commit(wire: Any) -> None:
    """Each commit notified after ``listen`` returned is received, and none that was rolled back."""
    async with listening(wire, VirtualEnvironment()) as (_, __, listener, heard):
        await notify(wire, "[1]", "[2]")
        async with wire.connected() as others, others.lend() as connection:
            await connection.script(f"BEGIN; NOTIFY {CHANNEL}, '[3]'; ROLLBACK")
        await listener.heartbeat()
        assert heard.changes == [LedgerChange(1), LedgerChange(2)]
        assert heard.woken == 0
        listener.unsubscribe(heard)
        await notify(wire, "[4]")
        await listener.heartbeat()
        assert len(heard.changes) == 2


FORGED = [
    ANYTHING_CHANGED,
    "",
    "nonsense",
    "{}",
    "[[1]]",
    '["x"]',
    "[" * 5_000,
    '[["/a","/a",[["i","xyz"]]]]',
    # As earlier releases brought values and entries along.
    '[["/txn/1",null,null,[["i","01"]],"{}"]]',
    '[[7,3,9,"AAAA"]]',
]


@pytest.mark.parametrize("text", FORGED)
async def test_what_is_not_understood(wire: Any, text: str) -> None:
    """A payload of a later release, or of another program, wakes every watch."""
    async with listening(wire, VirtualEnvironment()) as (_, __, listener, heard):
        await notify(wire, text)
        await listener.heartbeat()
        assert (heard.changes, heard.woken) == ([], 1)


async def test_a_flood_wakes_once(wire: Any) -> None:
    """Simultaneous notifications, however many, wake every watch once or twice; later ones are received."""
    async with listening(wire, VirtualEnvironment()) as (_, __, listener, heard):
        await notify(wire, *(f"[{number}]" for number in range(5_000)))
        await listener.heartbeat()
        # The server sends many at once, but not all of them.
        assert 0 < heard.woken < 500
        assert len(heard.changes) < 2_500
        heard.changes.clear()
        await notify(wire, "[7]")
        await listener.heartbeat()
        assert heard.changes == [LedgerChange(7)]


async def test_the_same_thing_many_times(wire: Any) -> None:
    """Simultaneous commits are delivered together, each change once."""
    async with listening(wire, VirtualEnvironment()) as (_, __, listener, heard):
        for _ in range(20):
            listener._on_notification(None, 0, CHANNEL, "[1,2]")
        assert heard.changes == []
        await asyncio.sleep(0)
        assert heard.changes == [LedgerChange(1), LedgerChange(2)]


async def test_another_channel(wire: Any) -> None:
    """Notifications of other channels are not received; a change of the channel wakes every watch."""
    async with listening(wire, VirtualEnvironment()) as (connections, __, listener, heard):
        other = channel_of("token", "schema")
        await wire.ask("SELECT pg_notify($1, '[1]')", other)
        await listener.heartbeat()
        assert (heard.changes, heard.woken) == ([], 0)
        connections.notify_on(other)
        await listener.listen()
        assert heard.woken == 1
        await notify(wire, "[1]")
        await wire.ask("SELECT pg_notify($1, '[2]')", other)
        await listener.heartbeat()
        assert heard.changes == [LedgerChange(2)]


def test_channels_fit_and_differ() -> None:
    """PostgreSQL does not truncate a channel's name, and other tokens and schemas have other names."""
    names = {channel_of(*own) for own in (("a", "b"), ("a", "c"), ("b", "b"), ("a/", "b"), ("a", "x" * 63))}
    assert len(names) == 5
    assert all(len(name.encode()) <= 63 for name in names)


async def test_first_listen_then_wake(wire: Any) -> None:
    """Commits during a loss wake every watch once LISTEN is active again; later commits are received."""
    environment = VirtualEnvironment()
    async with listening(wire, environment) as (_, proxy, listener, heard):
        proxy.cut()
        await wire.until(lambda: proxy.connections == 0)
        await notify(wire, "[1]")
        proxy.restore()
        while not heard.woken:
            await environment.advance(100)
            await asyncio.sleep(0.001)
        await notify(wire, "[2]")
        await listener.heartbeat()
        assert heard.changes == [LedgerChange(2)]


async def test_a_server_that_is_gone_is_told_of_once(wire: Any, caplog: pytest.LogCaptureFixture) -> None:
    """An outage is logged once, and so is its end, however many attempts fail."""
    environment = VirtualEnvironment()
    async with listening(wire, environment) as (connections, proxy, listener, heard):
        proxy.cut()
        await wire.until(lambda: bool(caplog.records))
        for _ in range(2):
            with pytest.raises(Unavailable):
                await listener.listen()
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert connections.shown_url in caplog.text
        proxy.restore()
        await listener.listen()
        assert [record.getMessage() for record in caplog.records[1:]] == [f"{connections.shown_url} answers again"]
        assert heard.woken == 1


async def test_ended_by_the_server(wire: Any) -> None:
    """A listening connection that the administrator ends is replaced at once, without a pause."""
    async with listening(wire, VirtualEnvironment()) as (_, __, listener, heard):
        await wire.ask(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        await wire.until(lambda: heard.woken > 0)
        await notify(wire, "[1]")
        await listener.heartbeat()
        assert heard.changes == [LedgerChange(1)]


async def test_commits_that_nobody_notifies(wire: Any) -> None:
    """Heartbeats wake every watch in turn, in case a process ended between its commit and its notification."""
    environment = VirtualEnvironment()
    async with listening(wire, environment, SOON_MS) as (_, _, _, heard):
        while len(heard.parts) < 3:
            await environment.advance(SOON_MS)
            await asyncio.sleep(0.001)
        assert sorted(heard.parts[:3]) == [(0, 3), (1, 3), (2, 3)]
        assert heard.woken == 0


@pytest.mark.parametrize("sender", list(Side))
async def test_half_open(wire: Any, sender: Side) -> None:
    """The heartbeat detects a half-open connection, and every watch is woken."""
    environment = VirtualEnvironment()
    async with listening(wire, environment, SOON_MS) as (_, proxy, listener, heard):
        proxy.drop(sender)
        await notify(wire, "[1]")
        await environment.advance(SOON_MS)
        await wire.until(lambda: listener._driver is None)
        proxy.restore()
        while not heard.woken:
            await environment.advance(100)
            await asyncio.sleep(0.001)
        # Where only the requests were lost, it succeeded before.
        assert heard.changes == ([] if sender is Side.SERVER else [LedgerChange(1)])


async def test_a_loop_that_is_held_up(wire: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply that arrives while the event loop stands still is no lost reply, and the connection stays."""
    async with listening(wire, VirtualEnvironment()) as (_, proxy, listener, heard):
        driver = listener._driver
        proxy.stall()
        asking = asyncio.ensure_future(listener.heartbeat())
        await run_ready()
        loop = asyncio.get_running_loop()
        time = loop.time
        # As if the loop had stood still for longer than a reply may take.
        monkeypatch.setattr(loop, "time", lambda: time() + 1.5 * HEARTBEAT_MS / 1000)
        await run_ready()
        proxy.restore()
        await asking
        assert listener._driver is driver
        assert heard.woken == 0


# Without the limit of the other tests, which this time exceeds.


async def test_a_server_that_cannot_be_reached(wire: Any) -> None:
    """Arming a watch then fails, and each call tries at once, without waiting for the pause between two attempts."""
    environment = VirtualEnvironment()
    async with listening(wire, environment) as (_, proxy, listener, heard):
        proxy.cut()
        await wire.until(lambda: listener._driver is None)
        for _ in range(5):
            with pytest.raises(Unavailable):
                await listener.listen()
        proxy.restore()
        await listener.listen()
        assert heard.woken == 1
        await notify(wire, "[1]")
        await listener.heartbeat()
        assert heard.changes == [LedgerChange(1)]


async def test_a_server_that_answers_others_is_asked_at_once(wire: Any) -> None:
    """The listener reconnects as soon as an operation has connected; a long pause ends early."""
    async with listening(wire, VirtualEnvironment()) as (connections, proxy, listener, heard):
        proxy.cut()
        # With the second failure it pauses, in virtual time that does not advance.
        await wire.until(lambda: listener._environment.next_ms() is not None and listener._driver is None)
        with pytest.raises(Unavailable):
            async with connections.lend():
                pass
        proxy.restore()
        async with connections.lend():
            await wire.until(lambda: heard.woken == 1)


@pytest.mark.parametrize("lets_in", [True, False])
async def test_pauses_grow_and_are_bounded(wire: Any, lets_in: bool) -> None:
    """The pauses between attempts grow up to a limit, also for a server that accepts connections and never answers."""
    environment = VirtualEnvironment()
    async with listening(wire, environment) as (_, __, listener, heard):
        times_ms: list[int] = []
        connect = listener._connect

        async def counted() -> Any:
            times_ms.append(environment.now_ms())
            if not lets_in:
                raise Unavailable("cannot connect to")
            return await connect()

        async def lost(_: asyncio.Event) -> bool:
            return False

        listener._connect = counted
        listener._heartbeat_until = lost
        assert listener._driver is not None
        listener._driver.terminate()
        await wire.until(lambda: bool(times_ms))
        while len(times_ms) < 14:
            # No task sleeps while a connection is made, which takes no virtual time.
            if (next_ms := environment.next_ms()) is not None:
                environment.move_to(next_ms)
            await asyncio.sleep(0.001)
        pauses_ms = [after - before for before, after in pairwise(times_ms)]
        assert max(pauses_ms[:3]) <= 320
        assert 2_500 <= max(pauses_ms) <= 5_000
        assert (heard.woken > 0) is lets_in


async def test_nobody_to_tell(wire: Any) -> None:
    """Without an armed watch, a lost connection is not replaced; the next armed watch reconnects."""
    async with listening(wire, VirtualEnvironment()) as (_, proxy, listener, heard):
        heard.armed.clear()
        proxy.reset_connections()
        await wire.until(lambda: listener._task is None or listener._task.done())
        assert proxy.connections == 0
        heard.armed.append(heard)
        await listener.listen()
        await notify(wire, "[1]")
        await listener.heartbeat()
        assert heard.changes == [LedgerChange(1)]


async def test_closing(wire: Any) -> None:
    """Callers that wait for LISTEN get Closed, and no task remains."""
    async with wire.proxied(connections_max=1) as (connections, proxy):
        proxy.stall()
        waiting = asyncio.create_task(connections.listener.listen())
        await wire.until(lambda: proxy.connections == 1)
        await connections.close()
        with pytest.raises(Closed):
            await waiting
        with pytest.raises(Closed):
            await connections.listener.listen()
        assert {task for task in asyncio.all_tasks() if "txnframework-sql" in task.get_name()} == set()


async def test_a_cancelled_one_does_not_stop_the_others(wire: Any) -> None:
    """Several callers may wait for the same LISTEN; the cancellation of one does not affect the others."""
    async with wire.proxied(connections_max=1) as (connections, proxy):
        proxy.stall()
        first = asyncio.create_task(connections.listener.listen())
        second = asyncio.create_task(connections.listener.listen())
        await wire.until(lambda: proxy.connections == 1)
        first.cancel()
        proxy.restore()
        await second
        assert first.cancelled()


async def test_keepalive(wire: Any) -> None:
    """The server's TCP keepalive is set as the URL or the options say."""
    url = wire.url_with(query="keepalives_idle=7&tcp_user_timeout=4321")
    options = {"keepalive_idle_s": 99, "keepalive_interval_s": 5}
    async with wire.connected(url, **options) as connections, connections.lend() as connection:
        for name, value in (("keepalives_idle", "7"), ("keepalives_interval", "5"), ("user_timeout", "4321")):
            assert await connection.read("SELECT current_setting($1)", f"tcp_{name}") == [(value,)]


RECORD = RecordChange("/a/ä", "/a/ä", frozenset())
INDEXED = RecordChange("/a", "part", frozenset({IndexEntry("by", b"\0\xff"), IndexEntry("by", b"x")}))


@pytest.mark.parametrize(
    "changes", [[], [RECORD], [INDEXED], [LedgerChange(7)], [RECORD, INDEXED, LedgerChange(1), LedgerChange(1)]]
)
def test_payloads(changes: list[Change]) -> None:
    """Encoded changes are decoded to the same changes, each once."""
    found = payloads(changes)
    assert len(found) == bool(changes)
    assert [change for text in found for change in changes_of(text) or ()] == list(dict.fromkeys(changes))


def test_payload_of_a_function() -> None:
    """A SQL function sends the index entries before and after separately, in the stored form."""
    expected = RecordChange("/a", "/a", frozenset({IndexEntry("i", b"\1"), IndexEntry("j", b"\2")}))
    assert changes_of('[["/a",null,[["i","01"]],null,[["j","02"]]]]') == (expected,)


async def test_long_payloads(wire: Any) -> None:
    """Many changes take several payloads; too many or too long ones are replaced by one that wakes every watch."""
    several = [RecordChange("/ä" * 200 + str(number), "p", frozenset()) for number in range(50)]
    found = payloads(several)
    assert 1 < len(found) <= PAYLOADS_MAX
    assert all(len(text.encode()) <= BYTES_MAX for text in found)
    assert [change for text in found for change in changes_of(text) or ()] == several
    assert payloads(several * 2) == found
    many = [RecordChange("/a" * 300 + str(number), "p", frozenset()) for number in range(500)]
    assert payloads(many) == [ANYTHING_CHANGED]
    longest = RecordChange("/" * (BYTES_MAX - len('[["",null]]')), "/" * (BYTES_MAX - len('[["",null]]')), frozenset())
    assert [len(text) for text in payloads([longest])] == [BYTES_MAX]
    assert payloads([RecordChange(longest.path + "/", longest.path + "/", frozenset())]) == [ANYTHING_CHANGED]

    await notify(wire, *found, *payloads([longest]))
