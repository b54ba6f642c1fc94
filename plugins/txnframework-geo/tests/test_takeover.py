"""A replicator that is killed, paused or cut off at any stage: nothing is lost, doubled or torn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from geo_world import World, torn

from txnframework import Client
from txnframework.errors import TxnFrameworkError
from txnframework_geo import Stage
from txnframework_geo._hold import Hold
from txnframework_geo._replicator import RETRY_DELAY_MS_MAX
from txnframework_geo._target import Target

DOMAINS = pytest.mark.parametrize("domain", ["topic", "persistent"])
STAGES = pytest.mark.parametrize("stage", list(Stage))


class Killed(Exception):
    """The process is gone."""


def at(stage: Stage, act: Callable[[], Awaitable[None]]) -> Callable[[Stage], Awaitable[None]]:
    """Return what calls ``act`` when a replicator reaches a stage."""

    async def reached(found: Stage) -> None:
        if found is stage:
            await act()

    return reached


async def until(world: World, done: asyncio.Future[None], running: asyncio.Future[None] | None = None) -> None:
    """
    Let time pass until ``done``: sessions expire and transactions of dead processes are aborted.

    ``running``: a replicator that must not end before.
    """
    while not done.done():
        if running is not None and running.done():
            done.cancel()
            running.result()
        await world.target.advance(1_000)
        await world.source.advance(1_000)
        await asyncio.sleep(0)
    await done


@DOMAINS
@STAGES
async def test_killed_at_a_stage(domain: str, stage: Stage) -> None:
    world = World(domain)

    async with world.source.open() as client:
        await world.create(client)
        await world.send(client, times=3)

    async def die(source: Client, target: Client) -> None:
        world.source.kill(source)
        world.target.kill(target)
        raise Killed

    try:
        async with world.source.open() as source, world.target.open() as target:
            await world.replicator(source, target, reached=at(stage, lambda: die(source, target))).run(once=True)
    except (Killed, TxnFrameworkError):
        pass
    async with world.source.open() as client:
        await world.send(client, times=2)
    await until(world, asyncio.ensure_future(world.copy()))
    await world.assert_same()


@DOMAINS
@STAGES
async def test_paused_at_a_stage_while_another_takes_over(
    domain: str, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The paused one goes on with what it knew before, long after others have replicated more."""
    world = World(domain)
    # Only the replicator is paused here, and not its process, so its lease is taken away as by a restarted program.
    consumer = Client.consumer
    monkeypatch.setattr(Client, "consumer", lambda *args, **options: consumer(*args, **options, name="replicator"))

    paused, go_on = asyncio.Event(), asyncio.Event()

    async def pause() -> None:
        if not paused.is_set():
            paused.set()
            await go_on.wait()

    async with world.source.open() as client, world.source.open() as source, world.target.open() as target:
        await world.create(client)
        await world.send(client, times=2)
        first = asyncio.ensure_future(world.replicator(source, target, reached=at(stage, pause)).run())
        await paused.wait()
        # What a pause ends: its session, and with it leases and transactions.
        world.target.end_session(target)
        await world.send(client)
        await until(world, asyncio.ensure_future(world.copy()))
        await world.assert_same()
        go_on.set()
        await world.send(client)
        await until(world, asyncio.ensure_future(caught_up(world)), first)
        assert not first.done()
        first.cancel()
        await asyncio.wait({first})
        await until(world, asyncio.ensure_future(world.copy()))
        await world.assert_same()


async def caught_up(world: World) -> None:
    """Return when the target has as many messages as the source."""
    for topic in world.topics:
        wanted = len(await world.source.read(str(topic)))
        while len(await world.target.read(str(topic))) < wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@STAGES
async def test_commits_whose_replies_are_lost(stage: Stage) -> None:
    """Whether the transaction was committed is unknown; the stored progress tells."""
    world = World()

    lost = 0

    async def lose() -> None:
        nonlocal lost
        lost += 1
        if lost == 1:
            world.target.lose_next_commit_reply()

    async with world.source.open() as source, world.target.open() as target:
        await world.create(source)
        await world.send(source, times=3)
        retried: list[TxnFrameworkError] = []

        def restore(error: TxnFrameworkError) -> None:
            retried.append(error)
            world.target.restore()

        replicator = world.replicator(source, target, reached=at(stage, lose))
        await until(world, asyncio.ensure_future(replicator.run(once=True, on_retry=restore)))
        world.target.restore()
    await world.assert_same()


async def test_several_replicators_of_one_name() -> None:
    """One works, and the others take over, one after another, while transactions go on."""
    world = World()

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(world.source.open())
        await world.create(client)
        running, targets = [], []
        for _ in range(3):
            source = await stack.enter_async_context(world.source.open())
            target = await stack.enter_async_context(world.target.open())
            targets.append(target)
            running.append(asyncio.ensure_future(world.replicator(source, target).run()))
        await world.send(client, times=3)
        await until(world, asyncio.ensure_future(caught_up(world)))
        for killed in range(2):
            world.target.kill(targets[killed])
            await world.send(client, times=3)
            await until(world, asyncio.ensure_future(caught_up(world)))
            async with world.target.open() as reader:
                assert not await torn(reader, world.topics)
        for one in running:
            one.cancel()
        await asyncio.wait(running)
        for target in targets:
            world.target.kill(target)
    await world.assert_same()


@pytest.mark.parametrize("paused_in", [(Hold, "create"), (Target, "begin")])
async def test_paused_before_the_first_progress(paused_in: tuple[type, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Others began and copied much meanwhile: the paused one neither begins again nor takes the progress for lost."""
    world = World()
    consumer = Client.consumer
    monkeypatch.setattr(Client, "consumer", lambda *args, **options: consumer(*args, **options, name="replicator"))
    paused, go_on = asyncio.Event(), asyncio.Event()
    call = getattr(*paused_in)

    async def pausing(*arguments: object) -> None:
        if not paused.is_set():
            paused.set()
            await go_on.wait()
        await call(*arguments)

    monkeypatch.setattr(*paused_in, pausing)

    async with world.source.open() as client, world.source.open() as source, world.target.open() as target:
        await world.create(client)
        await world.send(client, times=2)
        retried: list[TxnFrameworkError] = []
        first = asyncio.ensure_future(world.replicator(source, target).run(on_retry=retried.append))
        await paused.wait()
        world.target.end_session(target)
        await until(world, asyncio.ensure_future(world.copy()))
        go_on.set()
        await world.send(client)
        await until(world, asyncio.ensure_future(caught_up(world)), first)
        assert not first.done()
        first.cancel()
        await asyncio.wait({first})
    await world.assert_same()


async def test_copies_that_take_longer_than_a_transaction_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are repeated in smaller parts."""
    world = World()
    send = Target.send

    async def slow(self: Target, *arguments: object) -> None:
        await send(self, *arguments)  # type: ignore[arg-type]
        await world.target.advance(100)

    monkeypatch.setattr(Target, "send", slow)

    short = {"timeout_ms": 3_000, "timeout_ms_max": 3_000}
    pages = {"read_entries_max": 3}
    async with world.source.open(subscriptions=pages) as source, world.target.open(transactions=short) as target:
        await world.create(source)
        await world.send(source, times=30)
        replicator = world.replicator(source, target, messages_min=1_000)
        retries: asyncio.Queue[TxnFrameworkError] = asyncio.Queue()
        running = asyncio.ensure_future(replicator.run(once=True, on_retry=retries.put_nowait))
        retried = 0
        while not running.done():
            await asyncio.wait(
                {running, retrying := asyncio.ensure_future(retries.get())}, return_when="FIRST_COMPLETED"
            )
            if retrying.done():
                retried += 1
                await world.target.advance(RETRY_DELAY_MS_MAX * 2)
            else:
                retrying.cancel()
        await running
    assert retried > 1
    await world.assert_same()
