"""The simulated loop keeps asyncio's promises, repeats itself, and lets a process vanish without a trace."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any

import pytest

from txnframework_simulation.simulator import IsolationError, Process, SimulatedLoop, Stuck


@pytest.fixture
def loop() -> Iterator[SimulatedLoop]:
    loop = SimulatedLoop()
    yield loop
    loop.close()
    assert loop.reports == []


def test_time_passes_only_when_nothing_is_ready(loop: SimulatedLoop) -> None:
    """Sleeping takes virtual time and no real time; sleepers of both kinds wake in one order of time."""
    woken: list[tuple[str, int]] = []
    start_ms = loop.environment.now_ms()

    async def sleep(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        woken.append((name, loop.environment.now_ms() - start_ms))

    async def sleep_in_environment() -> None:
        await loop.environment.sleep_until(start_ms + 2_000)
        woken.append(("environment", loop.environment.now_ms() - start_ms))

    async def main() -> None:
        await asyncio.gather(sleep("late", 3_600), sleep("soon", 0.001), sleep_in_environment())

    began = time.monotonic()
    loop.run_until_complete(main())
    assert woken == [("soon", 1), ("environment", 2_000), ("late", 3_600_000)]
    assert time.monotonic() - began < 60


def test_another_thread_goes_on(loop: SimulatedLoop) -> None:
    """It was started before the simulation, and has real clocks during it, unlike the simulation."""
    asked, answered = threading.Event(), threading.Event()
    found: list[float] = []

    def other() -> None:
        asked.wait()
        with contextlib.suppress(IsolationError):
            found.append(time.monotonic())
        answered.set()

    thread = threading.Thread(target=other)
    thread.start()

    async def main() -> None:
        asked.set()
        assert answered.wait()
        with pytest.raises(IsolationError):
            time.monotonic()

    try:
        loop.run_until_complete(main())
    finally:
        asked.set()
        thread.join()
    assert len(found) == 1


def test_asyncio_works_on_it(loop: SimulatedLoop) -> None:
    """Timeouts, shields, gathering, queues, locks, waiting, cancellation and generators do what asyncio says."""

    async def main() -> list[object]:
        seen: list[object] = []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.sleep(10)
        inner = asyncio.ensure_future(asyncio.sleep(1, "inner"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(inner), 0.5)
        seen.append(await inner)
        queue: asyncio.Queue[int] = asyncio.Queue(1)

        async def produce() -> None:
            for number in range(5):
                await queue.put(number)

        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            seen += [await queue.get() for _ in range(5)]
        lock, condition = asyncio.Lock(), asyncio.Condition()

        async def hold() -> None:
            async with lock:
                await asyncio.sleep(1)
            async with condition:
                condition.notify_all()

        tasks = [asyncio.ensure_future(hold()) for _ in range(2)]
        async with condition:
            await condition.wait()
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        seen.append((len(done), len(pending)))
        for task in pending:
            task.cancel()
        seen.append([type(one) for one in await asyncio.gather(*pending, return_exceptions=True)])

        async def numbers() -> object:
            for number in range(3):
                await asyncio.sleep(0)
                yield number

        seen.append([number async for number in numbers()])
        return seen

    seen = loop.run_until_complete(main())
    assert seen == ["inner", 0, 1, 2, 3, 4, (1, 1), [asyncio.CancelledError], [0, 1, 2]]


def test_a_runner_takes_it() -> None:
    """Whatever runs a loop the usual way can run this one."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        assert runner.run(asyncio.sleep(1_000, "done")) == "done"


def trace(seed: int) -> list[str]:
    """Return who went when, in three processes whose tasks wait for each other."""
    loop, seen = SimulatedLoop(seed=seed), []

    async def walk(process: str, name: str) -> None:
        for number in range(5):
            seen.append(f"{process} {name} {number}")
            waits = {asyncio.ensure_future(loop.pause()) for _ in range(3)}
            await asyncio.wait(waits)

    async def run(process: str) -> None:
        await asyncio.gather(*(walk(process, name) for name in "xyz"))

    tasks = [loop.spawn(Process(name), run(name)) for name in "abc"]
    loop.run_until(lambda: all(task.done() for task in tasks))
    loop.close()
    return seen


def test_a_seed_repeats_itself() -> None:
    """One seed gives one order, another seed another one."""
    assert trace(1) == trace(1)
    assert len({tuple(trace(seed)) for seed in range(5)}) == 5


def test_one_process_keeps_the_order_of_asyncio(loop: SimulatedLoop) -> None:
    """Callbacks of one process run in the order in which they were registered, whatever the others do."""
    seen: dict[str, list[int]] = {"a": [], "b": []}

    async def register(name: str) -> None:
        for number in range(20):
            loop.call_soon(seen[name].append, number)

    for name in seen:
        loop.spawn(Process(name), register(name))
    loop.advance(0)
    assert seen == {"a": list(range(20)), "b": list(range(20))}


def test_a_killed_process_vanishes(loop: SimulatedLoop) -> None:
    """No ``finally``, no ``except``, no callback and no timer of it runs any more; the others go on."""
    noticed: list[str] = []
    shared = asyncio.Event()

    async def generate() -> object:
        try:
            yield 1
            await asyncio.sleep(5)
        finally:
            noticed.append("generator")
            await asyncio.sleep(0)

    async def child() -> None:
        try:
            await shared.wait()
        finally:
            noticed.append("child")

    async def doomed() -> None:
        asyncio.ensure_future(child()).add_done_callback(lambda _: noticed.append("callback"))
        loop.call_later(1, noticed.append, "timer")
        try:
            async for _ in generate():
                pass
        except BaseException:
            noticed.append("except")
        finally:
            noticed.append("finally")
            await asyncio.sleep(0)

    async def survivor() -> str:
        await asyncio.sleep(10)
        shared.set()
        await asyncio.sleep(10)
        return "alive"

    process = Process("doomed")
    loop.spawn(process, doomed())
    other = loop.spawn(Process("survivor"), survivor())
    loop.advance(0)
    process.kill()
    loop.run_until(other.done)
    gc.collect()
    assert (noticed, other.result()) == ([], "alive")
    assert "generate" in process.last_step or "child" in process.last_step


def test_a_frozen_process_goes_on_later(loop: SimulatedLoop) -> None:
    """A frozen process takes no step while time passes for the others, and then continues."""
    seen: list[str] = []

    async def count(name: str) -> None:
        for number in range(3):
            await asyncio.sleep(1)
            seen.append(f"{name} {number}")

    frozen = Process("frozen")
    loop.spawn(frozen, count("frozen"))
    loop.spawn(Process("other"), count("other"))
    loop.advance(1_000)
    frozen.frozen = True
    loop.advance(60_000)
    assert sorted(seen) == ["frozen 0", "other 0", "other 1", "other 2"]
    frozen.frozen = False
    loop.advance(1_000)
    assert seen[-1] == "frozen 2"


def test_a_killed_process_can_be_let_go() -> None:
    """Closing the loop destroys abandoned tasks, even if they resist, and reports nothing."""
    loop = SimulatedLoop()

    async def stubborn() -> None:
        try:
            try:
                await asyncio.sleep(10)
            finally:
                await asyncio.ensure_future(asyncio.sleep(10))
        finally:
            await asyncio.gather(asyncio.sleep(1), asyncio.sleep(2))

    process = Process("stubborn")
    for _ in range(3):
        loop.spawn(process, stubborn())
    loop.advance(1)
    process.kill()
    loop.close()
    gc.collect()
    assert loop.reports == []


class Opening(Coroutine[Any, Any, None]):
    """An object with the methods of a coroutine, as ``Client.producer`` returns it, and without its attributes."""

    def __init__(self, opening: Coroutine[Any, Any, None]) -> None:
        self._opening = opening

    def __await__(self) -> Generator[Any, Any, None]:
        return self._opening.__await__()

    def send(self, value: Any) -> Any:
        return self._opening.send(value)

    def throw(self, *raised: Any) -> Any:
        return self._opening.throw(*raised)

    def close(self) -> None:
        self._opening.close()


def test_an_opening_that_was_abandoned_can_be_let_go() -> None:
    """A task may run an object that is a coroutine by its methods only; its ``finally`` blocks may await as well."""
    loop, left = SimulatedLoop(), []

    async def opening() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            await asyncio.sleep(10)
            left.append("closed")

    process = Process("opening")

    async def begin() -> None:
        left.append(asyncio.ensure_future(Opening(opening())))

    loop.spawn(process, begin())
    loop.advance(1)
    process.kill()
    loop.close()
    assert left[1:] == []
    assert loop.reports == []


REACHES: dict[str, Callable[[], object]] = {
    "time.sleep": lambda: time.sleep(0),
    "time.time": lambda: time.time(),
    "random.random": lambda: random.random(),
    "Thread.start": lambda: threading.Thread().start(),
    "socket.__init__": lambda: socket.socket(),
    "loop.run_in_executor": lambda: asyncio.get_running_loop().run_in_executor(None, print),
    "loop.call_soon_threadsafe": lambda: asyncio.get_running_loop().call_soon_threadsafe(print),
    "loop.add_reader": lambda: asyncio.get_running_loop().add_reader(0, print),
}


@pytest.mark.parametrize("name", REACHES)
def test_the_real_world_is_refused(loop: SimulatedLoop, name: str) -> None:
    """Code that reaches for clocks, randomness, threads or I/O of the real world fails and says what it wanted."""

    async def main() -> None:
        REACHES[name]()

    with pytest.raises(IsolationError, match=name):
        loop.run_until_complete(main())


def test_io_is_refused(loop: SimulatedLoop) -> None:
    """The same for what awaits it."""
    with pytest.raises(IsolationError, match="run_in_executor"):
        loop.run_until_complete(asyncio.to_thread(print))


def test_what_cannot_happen_fails(loop: SimulatedLoop) -> None:
    """Waiting for what never comes fails, and names the task and the line where it waits."""

    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stuck, match=r"test_loop.py:\d+ .*wait_for_ever"):
        loop.run_until_complete(wait_for_ever())


def test_an_unnoticed_error_is_gathered() -> None:
    """An exception that was never retrieved is in ``reports``."""
    loop = SimulatedLoop()

    async def fail() -> None:
        raise ValueError("nobody looks")

    loop.spawn(Process("one"), fail())
    loop.advance(0)
    gc.collect()
    assert [str(report["exception"]) for report in loop.reports] == ["nobody looks"]
    loop.close()
