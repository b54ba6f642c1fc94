"""A torture run: processes work and are disrupted, everything settles, and the history is checked."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

import txnframework
from txnframework.client import Client
from txnframework.config import redact_url
from txnframework.errors import TxnFrameworkError
from txnframework.model import OtherType
from txnframework.plugin import Server
from txnframework_simulation.checkers import check
from txnframework_simulation.history import (
    UNNAMED,
    Begun,
    Commit,
    EventKind,
    History,
    HistoryWriter,
    Recorder,
    read,
    write,
)
from txnframework_simulation.torture.assignment import ARCHIVE, config, make_books, make_workload
from txnframework_simulation.torture.disruptions import Disruptions
from txnframework_simulation.torture.member import Member, Urls
from txnframework_simulation.torture.report import Progress, TortureResult, counts_of, operations_of
from txnframework_simulation.torture.tables import connect_to, create_table, has_tables
from txnframework_simulation.workloads import OwnRows, RecordedClient, Subscribed, Workload
from txnframework_simulation.workloads.drain import drain_outcome, drain_subscription, drain_topic
from txnframework_simulation.workloads.own_rows import STEPS

SETTLING_SECONDS_MAX = 90.0
"""The maximum time until open transactions are aborted, and the leases of dead processes have expired."""
_SETTLE_POLL_SECONDS = 0.5


async def prepare(urls: Urls, workload: Workload[Any], history: Path) -> None:
    """Create topics and subscriptions, and the table of the application if the store's database can have one."""
    appending = HistoryWriter(history, {"process": "prepare"})
    async with txnframework.open(config(urls.metadata, urls.ledger)) as client:
        recorded = RecordedClient(client, Recorder(time.monotonic_ns, appending.keep), "prepare")
        await workload.prepare(recorded)
        if has_tables(urls.metadata):
            books = _books(urls.metadata)
            await books.prepare(recorded)
            for topic in books.topics:
                await client.subscribe(topic, ARCHIVE, start="earliest")
            await create_table(urls.metadata)
    appending.close()


async def settle_and_drain(urls: Urls, workload: Workload[Any], asked: Iterable[str], history: Path) -> str:
    """
    Wait until everything has settled, then record a drain. Return an empty text, or the reason why it did not settle.

    The transactions of stopped processes time out, or are aborted earlier.
    """
    appending = HistoryWriter(history, {"process": "drain"})
    async with txnframework.open(config(urls.metadata, urls.ledger)) as client:
        recorded = RecordedClient(client, Recorder(time.monotonic_ns, appending.keep), "drain")
        books = _books(urls.metadata) if has_tables(urls.metadata) else None
        workloads = [workload, *([] if books is None else [books])]
        subscriptions = [one for each in workloads for one in each.subscriptions]
        left = await _settled(client, subscriptions)
        for txn in asked:
            await drain_outcome(recorded, txn)
        for each in workloads:
            for topic in each.topics:
                await drain_topic(recorded, topic)
        if books is not None:
            await books.drain_rows(recorded)
        # Each drain waits until no message arrives any more. Running them together takes only as long as one.
        await asyncio.gather(*(drain_subscription(recorded, one) for one in subscriptions))
    appending.close()
    return left


def _books(metadata: str) -> OwnRows:
    return make_books(connect_to(metadata), lambda _: None)


async def _settled(client: Client, subscriptions: Iterable[Subscribed]) -> str:
    deadline = time.monotonic() + SETTLING_SECONDS_MAX
    left = ""
    while time.monotonic() < deadline:
        left = await _unsettled(client, subscriptions)
        if not left:
            return ""
        await asyncio.sleep(_SETTLE_POLL_SECONDS)
    return left


async def _unsettled(client: Client, subscriptions: Iterable[Subscribed]) -> str:
    """Return why the run has not settled yet, or an empty text."""
    try:
        await client.maintain()
        hanging = await client.find_hanging(0)
        if hanging:
            return f"transaction {hanging[0].transaction.txn_id} is still open or has not taken effect everywhere"
        for one in subscriptions:
            await (await client.consumer(one.topic, one.name, type=OtherType(one.type))).close()
    except TxnFrameworkError as error:
        return str(error)
    return ""


def to_ask(history: History) -> list[str]:
    """
    Return the transactions whose outcome is unknown and must be asked for.

    The outcomes of the others are in the replies to their commits, and the drain checks them.
    """
    begun: dict[str, None] = {}
    told = set()
    for call in history.calls():
        if isinstance(call.reply, Begun) and not call.reply.txn.startswith(UNNAMED):
            begun[call.reply.txn] = None
        elif isinstance(call.operation, Commit) and call.kind is EventKind.OK:
            told.add(call.operation.txn)
    return [txn for txn in begun if txn not in told]


HISTORY = "history.jsonl"
ENDING_SECONDS_MAX = 60.0
"""The maximum time for a process to finish its operations and close, without disruptions."""

STARTING_SECONDS_MAX = 60.0
_START_POLL_SECONDS = 0.05
"""The interval between checks whether all processes have started."""


@dataclass(frozen=True)
class Settings:
    """
    The settings of a run: its stores, its duration, the number of concurrent processes, and the seed of the
    disruptions.

    ``servers``: the servers that are killed and restarted.
    """

    urls: Urls
    directory: Path
    seconds: float
    processes: int
    seed: int
    servers: Mapping[str, Server] = field(default_factory=dict)


def run(settings: Settings, console: Console) -> TortureResult:
    """Run the torture; the directory then contains all results."""
    for name in ("parts", "logs"):
        (settings.directory / name).mkdir()
    try:
        return asyncio.run(_run(settings, console))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def judge(directory: Path) -> TortureResult:
    """Check the history in a directory again."""
    history = read(directory / HISTORY)
    return _judged(history, {}, [])


async def _run(settings: Settings, console: Console) -> TortureResult:
    task = asyncio.current_task()
    assert task is not None
    # Handled like an interrupt; otherwise paused processes would remain paused.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    workload = make_workload()
    parts = settings.directory / "parts"
    await prepare(settings.urls, workload, parts / "prepare.jsonl")
    counts, defects = await _disrupt(settings, console)
    console.print("settling and draining")
    left = await settle_and_drain(settings.urls, workload, to_ask(_merged(parts, {})), parts / "drain.jsonl")
    if left:
        defects.append(f"settling did not complete: {left}")
    about = {"seed": str(settings.seed), "metadata": redact_url(settings.urls.metadata)}
    history = _merged(parts, about)
    write(history, settings.directory / HISTORY)
    console.print(f"{len(history.events)} events recorded, checking", highlight=False)
    result = _judged(history, counts, defects)
    (settings.directory / "result.json").write_bytes(result.to_json())
    return result


async def _disrupt(settings: Settings, console: Console) -> tuple[dict[str, int], list[str]]:
    """Run and disrupt processes for the set time, then stop them; return counts and defects."""
    defects: list[str] = []
    async with AsyncExitStack() as stack:
        members = [await stack.enter_async_context(_member(settings, number)) for number in range(settings.processes)]
        await _all_at_work(members)
        file = settings.directory / "disruptions.jsonl"
        disruptions = Disruptions(members, settings.seed, file, settings.servers)
        disrupting = asyncio.create_task(disruptions.run())
        try:
            progress = Progress(console, settings.directory / "parts", settings.seconds, disruptions)
            await progress.until(time.monotonic() + settings.seconds)
        finally:
            disrupting.cancel()
            await asyncio.gather(disrupting, return_exceptions=True)
        defects += disruptions.broken
        console.print("stopping the processes")
        ended = await asyncio.gather(*(member.end(ENDING_SECONDS_MAX) for member in members))
        for member, in_time in zip(members, ended, strict=True):
            defects += member.failures
            if not in_time:
                defects.append(
                    f"process {member.name} did not end within {ENDING_SECONDS_MAX:.0f} s; its log shows where it waits"
                )
    begun = {"seconds": round(settings.seconds), "processes at a time": settings.processes}
    steps = sum((member.steps for member in members), Counter[str]())
    at_steps = {f"kills when {step}": steps[step] for step in STEPS} if has_tables(settings.urls.metadata) else {}
    started = {"processes started": sum(one.lives for one in members)}
    return begun | started | disruptions.summary() | at_steps, defects


async def _all_at_work(members: list[Member]) -> None:
    """Wait until all processes have started; a process that takes too long is reported later."""
    for _ in range(round(STARTING_SECONDS_MAX / _START_POLL_SECONDS)):
        if all(member.works for member in members):
            return
        await asyncio.sleep(_START_POLL_SECONDS)


def _member(settings: Settings, number: int) -> Member:
    return Member(number, settings.seed + number, settings.directory, settings.urls)


def _judged(history: History, counts: dict[str, int], defects: list[str]) -> TortureResult:
    calls = history.calls()
    books = make_books(connect_to(""), lambda _: None)
    violations = [*check(history), *make_workload().violations(history), *books.violations(history)]
    return TortureResult(counts | counts_of(history, calls), operations_of(calls), violations, defects)


def _merged(parts: Path, about: dict[str, str]) -> History:
    # The history of a process is empty if it was killed before it wrote the first line.
    files = [file for file in sorted(parts.glob("*.jsonl")) if file.stat().st_size]
    return History.merged((read(file) for file in files), about)
