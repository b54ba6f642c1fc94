"""A whole run."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from txnframework.config import redact_url
from txnframework.plugin import Server
from txnframework_simulation.checkers import check
from txnframework_simulation.history import History, read, write
from txnframework_simulation.torture.assignment import make_workload
from txnframework_simulation.torture.member import Member, Urls
from txnframework_simulation.torture.misfortunes import Misfortunes
from txnframework_simulation.torture.outcome import Outcome, counts_of, operations_of
from txnframework_simulation.torture.progress import Progress
from txnframework_simulation.torture.settling import prepare, settle_and_drain, to_ask

HISTORY = "history.jsonl"
ENDING_SECONDS_MAX = 60.0
"""How long a process may take to finish what it does and close, when nothing is in its way."""

STARTING_SECONDS_MAX = 60.0
_LOOK_SECONDS = 0.05
"""In what a history says about its run."""


@dataclass(frozen=True)
class Settings:
    """
    What is run: so many processes at a time, for so long, over these stores, with misfortunes by this seed.

    ``servers``: those that are killed and started again.
    """

    urls: Urls
    directory: Path
    seconds: float
    processes: int
    seed: int
    servers: Mapping[str, Server] = field(default_factory=dict)


def run(settings: Settings, console: Console) -> Outcome:
    """Run it; everything about it is in the directory afterwards."""
    for name in ("parts", "logs"):
        (settings.directory / name).mkdir()
    try:
        return asyncio.run(_run(settings, console))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def judge(directory: Path) -> Outcome:
    """Check the history in a directory again."""
    history = read(directory / HISTORY)
    return _judged(history, {}, [])


async def _run(settings: Settings, console: Console) -> Outcome:
    task = asyncio.current_task()
    assert task is not None
    # As an interrupt: processes that stand still would otherwise stand there for ever.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    workload = make_workload()
    parts = settings.directory / "parts"
    await prepare(settings.urls, workload, parts / "prepare.jsonl")
    counts, defects = await _suffer(settings, console)
    console.print("everything settles and is looked at")
    left = await settle_and_drain(settings.urls, workload, to_ask(_merged(parts, {})), parts / "drain.jsonl")
    if left:
        defects.append(f"not everything settled: {left}")
    about = {"seed": str(settings.seed), "metadata": redact_url(settings.urls.metadata)}
    history = _merged(parts, about)
    write(history, settings.directory / HISTORY)
    console.print(f"{len(history.events)} events are checked", highlight=False)
    outcome = _judged(history, counts, defects)
    (settings.directory / "outcome.json").write_bytes(outcome.to_json())
    return outcome


async def _suffer(settings: Settings, console: Console) -> tuple[dict[str, int], list[str]]:
    """Let processes work and be struck for the time that was set, and come to an end; return counts and defects."""
    defects: list[str] = []
    async with AsyncExitStack() as stack:
        members = [await stack.enter_async_context(_member(settings, number)) for number in range(settings.processes)]
        await _all_at_work(members)
        file = settings.directory / "misfortunes.jsonl"
        misfortunes = Misfortunes(members, settings.seed, file, settings.servers)
        striking = asyncio.create_task(misfortunes.go_on())
        try:
            progress = Progress(console, settings.directory / "parts", settings.seconds, misfortunes)
            await progress.until(time.monotonic() + settings.seconds)
        finally:
            striking.cancel()
            await asyncio.gather(striking, return_exceptions=True)
        defects += misfortunes.broken
        console.print("everybody comes to an end")
        ended = await asyncio.gather(*(member.end(ENDING_SECONDS_MAX) for member in members))
        for member, in_time in zip(members, ended, strict=True):
            defects += member.fell
            if not in_time:
                defects.append(
                    f"process {member.name} did not end within {ENDING_SECONDS_MAX:.0f} s; its log says where it stands"
                )
    begun = {"seconds": round(settings.seconds), "processes at a time": settings.processes}
    return begun | {"processes started": sum(one.lives for one in members)} | misfortunes.summary(), defects


async def _all_at_work(members: list[Member]) -> None:
    """Wait until everybody has begun, or somebody takes too long: what follows will tell of it."""
    for _ in range(round(STARTING_SECONDS_MAX / _LOOK_SECONDS)):
        if all(member.works for member in members):
            return
        await asyncio.sleep(_LOOK_SECONDS)


def _member(settings: Settings, number: int) -> Member:
    return Member(number, settings.seed + number, settings.directory, settings.urls)


def _judged(history: History, counts: dict[str, int], defects: list[str]) -> Outcome:
    calls = history.calls()
    violations = [*check(history), *make_workload().violations(history)]
    return Outcome(counts | counts_of(history, calls), operations_of(calls), violations, defects)


def _merged(parts: Path, about: dict[str, str]) -> History:
    # A process that was killed before it had written its first line has no history.
    files = [file for file in sorted(parts.glob("*.jsonl")) if file.stat().st_size]
    return History.merged((read(file) for file in files), about)
