"""Many browsers on one view cost one reading; a view without watchers costs none."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from console_world import served

from txnframework.errors import NotFound, Unavailable
from txnframework.testing import VirtualEnvironment
from txnframework.testing.clock import run_ready
from txnframework_console.app import STREAMS_MAX, event_of
from txnframework_console.polls import FRESH_MS, LOAD_MAX, POLL_MS, READ_MAX_MS, VIEWS_MAX, Poll, Polls, Snapshot


class Readings:
    """A view whose readings are counted; ``error``: they fail, ``takes_ms``: they take this long."""

    def __init__(self, environment: VirtualEnvironment) -> None:
        self.count = 0
        self.error: Exception | None = None
        self.takes_ms = 0
        self.html = ""
        self._environment = environment

    async def __call__(self) -> str:
        self.count += 1
        if self.takes_ms:
            await self._environment.sleep_until(self._environment.now_ms() + self.takes_ms)
        if self.error is not None:
            raise self.error
        return self.html or f"reading {self.count}"


def watching(poll: Poll, seen: list[Snapshot]) -> asyncio.Task[None]:
    async def watch() -> None:
        async with aclosing(poll.watch()) as snapshots:
            async for one in snapshots:
                seen.append(one)

    return asyncio.ensure_future(watch())


async def test_watchers_share_readings() -> None:
    """Ten browsers see every change; when the last one leaves, nothing is read any more."""
    environment = VirtualEnvironment()
    read = Readings(environment)
    poll = Poll(read, environment)
    seen: list[list[Snapshot]] = [[] for _ in range(10)]
    tasks = [watching(poll, one) for one in seen]
    await environment.advance(3 * POLL_MS)
    assert poll.watchers == 10
    assert read.count == 4
    assert [[each.html for each in one] for one in seen] == [[f"reading {n}" for n in (1, 2, 3, 4)]] * 10
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await environment.advance(10 * POLL_MS)
    assert (poll.watchers, read.count) == (0, 4)
    await poll.close()


async def test_what_does_not_change_is_not_sent() -> None:
    """A watcher gets one snapshot of a view that stays the same."""
    environment = VirtualEnvironment()
    read = Readings(environment)
    read.html = "the same"
    poll, seen = Poll(read, environment), list[Snapshot]()
    task = watching(poll, seen)
    await environment.advance(5 * POLL_MS)
    assert read.count == 6
    assert len(seen) == 1
    await poll.close()
    await task


async def test_pages_share_a_fresh_reading() -> None:
    """Requests at the same time and soon after read once; a later one reads again."""
    environment = VirtualEnvironment()
    read = Readings(environment)
    poll = Poll(read, environment)
    found = await asyncio.gather(*(poll.snapshot() for _ in range(5)))
    await environment.advance(FRESH_MS - 1)
    assert {one.html for one in (*found, await poll.snapshot())} == {"reading 1"}
    await environment.advance(1)
    assert (await poll.snapshot()).html == "reading 2"


async def test_a_slow_view_rests() -> None:
    """It takes at most a fifth of the time, and is read once at a time."""
    environment = VirtualEnvironment()
    read = Readings(environment)
    read.takes_ms = 3_000
    poll = Poll(read, environment)
    task = watching(poll, [])
    await environment.advance(10 * 3_000 * (1 + LOAD_MAX))
    assert read.count <= 11
    await poll.close()
    await task


async def test_a_store_that_never_answers() -> None:
    """The page says so in time, keeps what it showed, and starts no second reading beside the one that hangs."""
    environment = VirtualEnvironment()
    read = Readings(environment)
    poll = Poll(read, environment)
    first = await poll.snapshot()
    read.takes_ms = 10 * READ_MAX_MS
    await environment.advance(FRESH_MS)
    for _ in range(2):
        asked = asyncio.ensure_future(poll.snapshot())
        await environment.advance(READ_MAX_MS)
        told = await asked
        assert told == Snapshot(first.html, first.read_ms, "The stores did not answer within 10 s.", 503)
        await environment.advance(FRESH_MS)
    assert read.count == 2
    read.takes_ms = 0
    await environment.advance(10 * READ_MAX_MS)
    assert (await poll.snapshot()).problem == ""
    await poll.close()


async def test_failures() -> None:
    """An outage keeps the last reading; what does not exist any more is not shown; a defect is no outage."""
    environment = VirtualEnvironment()
    read = Readings(environment)
    poll = Poll(read, environment)
    await poll.snapshot()
    told = []
    for error in (Unavailable("down"), NotFound("no topic"), ValueError("a defect")):
        read.error = error
        await environment.advance(FRESH_MS)
        told.append(await poll.snapshot())
    assert [(one.status, one.html, one.problem) for one in told] == [
        (503, "reading 1", "The stores do not answer: down"),
        (404, "", "no topic"),
        (500, "", "The console failed to read this view; its log says why."),
    ]


async def test_views_are_forgotten() -> None:
    """The ones that were used longest ago, and never one that is watched."""
    environment = VirtualEnvironment()
    read = Readings(environment)
    polls = Polls(lambda _: read(), environment)
    watched = polls.of("watched")
    task = watching(watched, [])
    await run_ready()
    old = polls.of("old")
    for number in range(VIEWS_MAX + 5):
        polls.of(number)
    assert polls.of("watched") is watched
    assert polls.of("old") is not old
    assert polls.watchers == 1
    await polls.close()
    await task


def test_an_event_has_each_line() -> None:
    """A line of HTML cannot end the event, or begin another field."""
    assert event_of("a\n\nevent: x\rdata: y") == "event: view\ndata: a\ndata: \ndata: event: x\ndata: data: y\n\n"


def live_scope() -> dict[str, object]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "method": "GET",
        "path": "/live/topics",
        "raw_path": b"/live/topics",
        "root_path": "",
        "scheme": "http",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1:8470")],
        "server": ("127.0.0.1", 8470),
        "client": ("127.0.0.1", 1),
    }


async def test_a_live_view() -> None:
    """A browser gets the view, then each change, and a comment while nothing changes; closing ends it."""
    async with served() as world:
        sent: list[bytes] = []
        gone = asyncio.Event()

        async def send(message: dict[str, object]) -> None:
            body = message.get("body", b"")
            assert isinstance(body, bytes)
            sent.append(body)

        async def receive() -> dict[str, object]:
            await gone.wait()
            return {"type": "http.disconnect"}

        asked = asyncio.ensure_future(world.console.app(live_scope(), receive, send))  # type: ignore[arg-type]
        await world.environment.advance(1)
        assert b"event: view" in b"".join(sent)
        assert b"No topic has this in its name" in b"".join(sent)
        await world.client.create_topic("orders")
        await world.environment.advance(10_000)
        assert b"data: " in sent[-1]
        assert b"orders" in b"".join(sent)
        await world.environment.advance(20_000)
        assert b": still here\n\n" in sent
        assert world.console.polls.watchers == 1
        gone.set()
        await asked
        assert world.console.polls.watchers == 0


async def test_the_number_of_live_views() -> None:
    """It is bounded also if all browsers ask at once; each that leaves makes room, also one that never got an event."""
    async with served() as world:
        statuses: list[object] = []
        gone = asyncio.Event()

        async def send(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        async def receive() -> dict[str, object]:
            await gone.wait()
            return {"type": "http.disconnect"}

        def ask(browsers: int) -> list[asyncio.Future[None]]:
            app = world.console.app
            return [asyncio.ensure_future(app(live_scope(), receive, send)) for _ in range(browsers)]  # type: ignore[arg-type]

        asked = ask(STREAMS_MAX + 50)
        await run_ready()
        assert sorted(map(str, statuses)) == ["200"] * STREAMS_MAX + ["503"] * 50
        gone.set()
        await asyncio.gather(*asked)
        statuses.clear()
        await asyncio.gather(*ask(STREAMS_MAX))
        assert statuses == [200] * STREAMS_MAX
        assert world.console.polls.watchers == 0
