"""A task of the framework begins after the step that starts it, whatever task factory a program has set."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from txnframework.runtime.tasks import BackgroundTask, first_completed, start_task

ROOT = Path(__file__).parents[3]
STARTS = re.compile(r"\.(create_task|ensure_future|TaskGroup)\(")
FREE = (
    "src/txnframework/runtime/tasks.py",
    # These stand for a program, or for its event loop.
    "src/txnframework/testing/",
    "plugins/txnframework-simulation/",
    "plugins/txnframework-compare/",
)
SOURCES = [
    path
    for path in sorted((*ROOT.glob("src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")))
    if not str(path.relative_to(ROOT)).startswith(FREE) and "testing" not in (*path.parts, path.stem)
]


def starts(source: str) -> Iterator[int]:
    """Yield the lines that start a task by asyncio."""
    for number, line in enumerate(source.splitlines(), 1):
        if STARTS.search(line):
            yield number


def test_all_tasks_are_started_in_one_way() -> None:
    """With an eager task factory, a task that asyncio starts runs before the caller has kept it."""
    found = [f"{path.relative_to(ROOT)}:{line}" for path in SOURCES for line in starts(path.read_text("utf-8"))]
    assert not found, f"use txnframework.runtime.tasks.start_task: {found}"
    bad = "asyncio.create_task(work())\nloop.create_task(work())\nasyncio.ensure_future(work())"
    assert list(starts(bad)) == [1, 2, 3]


async def test_a_result_a_name_and_a_context_are_passed_on() -> None:
    """It is an ordinary task; what is awaitable but no coroutine is awaited."""

    async def work() -> int:
        return 7

    assert await start_task(work()) == 7
    assert start_task(work(), name="seven").get_name() == "seven"
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    awaiting = start_task(future)
    future.set_result(8)
    assert await awaiting == 8


if sys.version_info >= (3, 12):  # earlier versions have no eager tasks

    @pytest.mark.parametrize("factory", [None, asyncio.eager_task_factory])
    def test_a_task_begins_after_the_callers_step(factory: object) -> None:
        """Also when a program starts its tasks eagerly."""

        async def run() -> None:
            asyncio.get_running_loop().set_task_factory(factory)
            steps = []

            async def work() -> None:
                steps.append("task")

            task = start_task(work())
            steps.append("caller")
            await task
            assert steps == ["caller", "task"]

        asyncio.run(run())

    def test_background_work_may_look_at_its_own_task() -> None:
        """It has been kept when its first step runs, so starting again from within changes nothing."""

        async def run() -> None:
            asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
            begun = 0

            async def work() -> None:
                nonlocal begun
                begun += 1
                if begun < 3:
                    ongoing.start()

            ongoing = BackgroundTask(work)
            ongoing.start()
            assert ongoing.started
            await first_completed(asyncio.sleep(0), asyncio.Event().wait())
            await ongoing.stop()
            assert begun == 1

        asyncio.run(run())
