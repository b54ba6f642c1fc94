"""Steps that a host completes although their callers are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from txnframework.errors import Closed, Unavailable
from txnframework.runtime.steps import Steps
from txnframework.testing.clock import VirtualEnvironment, run_ready


def test_a_step_ends_without_its_caller() -> None:
    """The caller returns at once, the step continues, and the next step of the key follows it."""

    async def work() -> list[str]:
        done: list[str] = []
        gate = asyncio.Event()
        steps = Steps(VirtualEnvironment())

        async def first() -> None:
            await gate.wait()
            done.append("first")

        async def note(name: str) -> str:
            done.append(name)
            return name

        caller = asyncio.ensure_future(steps.finish(first, ("a",)))
        await run_ready()
        caller.cancel()
        await asyncio.wait({caller})
        assert caller.cancelled()
        behind = asyncio.ensure_future(steps.finish(lambda: note("behind"), ("b", "a")))
        assert await steps.finish(lambda: note("beside"), ("b",)) == "beside"
        waiting = asyncio.ensure_future(steps.abandoned_ended(("a",)))
        await run_ready()
        assert not waiting.done()
        gate.set()
        await asyncio.gather(behind, waiting)
        return done

    assert asyncio.run(work()) == ["beside", "first", "behind"]


def test_what_nobody_got_is_undone() -> None:
    """A result is undone even if the step had ended before the cancellation; other callers keep their results."""

    async def work(steps_before: int) -> tuple[bool, list[str]]:
        undone: list[str] = []
        steps = Steps(VirtualEnvironment())

        async def make() -> str:
            await asyncio.sleep(0)
            return "made"

        async def undo(made: str) -> None:
            undone.append(made)

        caller = asyncio.ensure_future(steps.finish(make, ("a",), undo))
        for _ in range(steps_before):
            await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait({caller})
        await steps.abandoned_ended(("a",))
        await run_ready()
        return caller.cancelled(), undone

    results = [asyncio.run(work(number)) for number in range(8)]
    assert results[0] == (True, [])  # it never began
    assert (True, ["made"]) in results
    assert results[-1] == (False, [])
    assert set(map(str, results[1:])) <= {"(True, ['made'])", "(False, [])"}


def test_a_step_inside_another_one_waits_for_nothing_that_came_later() -> None:
    """Undoing an abandoned step may begin a step with the same key, such as closing an unused consumer.

    That step runs before later steps, also abandoned ones.
    """

    async def work() -> list[str]:
        done: list[str] = []
        gate = asyncio.Event()
        steps = Steps(VirtualEnvironment())

        async def join() -> str:
            await gate.wait()
            return "joined"

        async def note(name: str) -> None:
            done.append(name)

        async def leave(joined: str) -> None:
            leaving = steps.begin(lambda: note(f"left what was {joined}"), ("a",))
            await steps.end_of(leaving, ("a",))

        async def give_up(caller: Coroutine[None, None, object]) -> None:
            task = asyncio.ensure_future(caller)
            await run_ready()
            task.cancel()
            await asyncio.wait({task})

        await give_up(steps.finish(join, ("a",), leave))
        await give_up(steps.finish(lambda: note("another one left"), ("a",)))
        gate.set()
        await run_ready()
        return done

    assert asyncio.run(work()) == ["left what was joined", "another one left"]


async def test_closing_waits_for_what_was_begun_and_then_gives_it_up() -> None:
    """The close waits for the given time, then cancels; waiters of cancelled steps get an error.

    A step may close by itself.
    """
    environment = VirtualEnvironment()
    steps = Steps(environment)
    ended: list[str] = []

    async def slow(until_ms: int) -> None:
        await environment.sleep_until(environment.now_ms() + until_ms)
        ended.append(str(until_ms))

    callers = [asyncio.ensure_future(steps.finish(lambda ms=ms: slow(ms))) for ms in (500, 5_000)]
    await run_ready()
    closing = asyncio.ensure_future(steps.finish(lambda: steps.close(1_000)))
    await environment.advance(500)
    assert ended == ["500"]
    assert not closing.done()
    await environment.advance(500)
    await closing
    assert ended == ["500"]
    assert callers[0].exception() is None
    with pytest.raises(Closed):
        await callers[1]


def test_what_fails_unheard() -> None:
    """An error of the framework is ignored, as after a crash; a defect is reported."""

    async def work() -> list[BaseException]:
        reported: list[BaseException] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
        steps = Steps(VirtualEnvironment())

        async def fail(error: Exception) -> None:
            await asyncio.sleep(0)
            raise error

        for error in (Unavailable("away"), ValueError("a defect")):
            steps.leave(lambda error=error: fail(error), ("a",))
        await steps.abandoned_ended(("a",))
        with pytest.raises(Unavailable):
            await steps.finish(lambda: fail(Unavailable("away")))
        await run_ready()
        return reported

    assert [str(error) for error in asyncio.run(work())] == ["a defect"]
