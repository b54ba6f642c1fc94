"""
One process of a run: opens the stores, runs its actors, and appends what they see to its history.

It is started as ``python -m txnframework_simulation.torture.worker``. The first line of its standard input is its
assignment. It ends when the input ends. On SIGUSR1 it prints the stacks of its tasks.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import msgspec

import txnframework
from txnframework.client import Client
from txnframework.environment import SystemEnvironment
from txnframework.errors import Conflict, Unavailable
from txnframework.errors import OutcomeUnknown as InDoubt
from txnframework_simulation.history import HistoryWriter, Recorder
from txnframework_simulation.torture.assignment import ACTORS, Assignment, config, make_books, make_workload
from txnframework_simulation.torture.steps import KillAtStep
from txnframework_simulation.torture.tables import connect_to, has_tables
from txnframework_simulation.workloads import ActorContext, RecordedClient

_AGAIN_SECONDS = 0.3


def main() -> None:
    """Read the assignment and run it."""
    assignment = msgspec.json.decode(sys.stdin.buffer.readline(), type=Assignment)
    asyncio.run(work(assignment))


async def work(assignment: Assignment) -> None:
    """
    Run all actors until the input ends.

    If the stores cannot be opened, try again.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), lambda: _read(stopped))
    loop.add_signal_handler(signal.SIGUSR1, _print_tasks)
    history = HistoryWriter(Path(assignment.history), {"process": assignment.name})
    recorder = Recorder(time.monotonic_ns, history.keep)
    for attempt in count(1):
        if stopped.is_set():
            return
        try:
            await _once(assignment, attempt, recorder, lambda: not stopped.is_set())
        except (Unavailable, InDoubt, Conflict) as error:
            print(f"{assignment.name} opens again: {error}", file=sys.stderr)  # noqa: T201 - its log
            await asyncio.sleep(_AGAIN_SECONDS)


async def _once(assignment: Assignment, attempt: int, recorder: Recorder, more: Callable[[], bool]) -> None:
    async with txnframework.open(config(assignment.metadata, assignment.ledger)) as client:
        workload = make_workload()
        async with asyncio.TaskGroup() as actors:
            for number in range(ACTORS):
                actors.create_task(workload.run(_part(assignment, client, recorder, f"{attempt}.{number}", more)))
            if has_tables(assignment.metadata):
                part = _part(assignment, client, recorder, f"{attempt}.books", more)
                at_step = KillAtStep(Path(assignment.history), part.chance)
                actors.create_task(make_books(connect_to(assignment.metadata), at_step).run(part))


def _part(
    assignment: Assignment, client: Client, recorder: Recorder, name: str, more: Callable[[], bool]
) -> ActorContext:
    recorded = RecordedClient(client, recorder, f"{assignment.name}.{name}")
    chance = random.Random(f"{assignment.seed} {name}")  # noqa: S311 - repeatable on purpose
    return ActorContext(recorded, chance, SystemEnvironment(), more, assignment.place)


def _read(stopped: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 1):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        stopped.set()


def _print_tasks() -> None:
    for task in asyncio.all_tasks():
        task.print_stack(file=sys.stderr)


if __name__ == "__main__":
    main()
