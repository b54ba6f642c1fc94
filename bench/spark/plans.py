"""Planning one micro-batch of four unequal segments: with a large backlog over a small one, without Spark.

What waits is counted by the ledgers' own numbers, so a ledger whose entries say that they hold a thousand messages each
is as good as one that has them. In the last figure ledgers are small, as if each message were an entry of its own.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

from measurement import Found
from stage import Stage

from txnframework.broker import Host, open_host
from txnframework.config import load_config
from txnframework.model.entries import EntryMessage, encode_entry
from txnframework.model.ledger import Append
from txnframework.model.names import TopicName
from txnframework_spark.options.source import SourceOptions
from txnframework_spark.source.admission import BatchLimit
from txnframework_spark.source.planner import InputPlanner

ENTRY_MESSAGES = 1_000
MUCH, LITTLE = 100_000_000, 1_000_000
BATCH = 10_000
BATCHES = 40
_WEIGHTS = (54, 27, 13, 6)
_AT_A_TIME = 500


def planning_a_backlog(stage: Stage) -> list[Found]:
    """A hundred times the backlog, in ledgers of the usual size and in many small ones."""
    return [
        _compared(stage, "ledgers of 50,000 entries", 50_000),
        _compared(stage, "2,000 ledgers", MUCH // ENTRY_MESSAGES // 2_000),
    ]


def _compared(stage: Stage, what: str, ledger_entries_max: int) -> Found:
    times: dict[int, list[float]] = {}
    for messages in (LITTLE, MUCH):
        stage.progress(f"storing {messages:,} messages, {what}")
        file = stage.directory / f"planning-{messages}-{ledger_entries_max}.db"
        file.unlink(missing_ok=True)
        times[messages] = asyncio.run(_planned(file, messages, ledger_entries_max))
    first = {messages: round(1_000 * took[0], 1) for messages, took in times.items()}
    later = {messages: statistics.median(took[1:]) for messages, took in times.items()}
    notes = {
        "messages": MUCH,
        "first_plan_ms": first[MUCH],
        "first_plan_of_little_ms": first[LITTLE],
        "plan_ms": round(1_000 * later[MUCH], 1),
        "plan_of_little_ms": round(1_000 * later[LITTLE], 1),
    }
    rounds = tuple(ours / theirs for ours, theirs in zip(times[MUCH][1:], times[LITTLE][1:], strict=True))
    return Found(f"planning a batch, {MUCH:,} waiting / {LITTLE:,} waiting, {what}", rounds, None, notes)


async def _planned(file: Path, messages: int, ledger_entries_max: int) -> list[float]:
    """Return how long each of the first batches took to plan."""
    options = {"ledger_entries_max": ledger_entries_max}
    url = f"sqlite:///{file}"
    host = await open_host(load_config({"metadata": {"url": url}, "ledger": {"url": url, "options": options}}))
    try:
        topic = TopicName.parse("in")
        await host.topics.create(topic, len(_WEIGHTS))
        await _fill(host, topic, messages)
        source = {"subscribe": "in", "startingOffsets": "earliest", "groupId": "g"}
        planner = await InputPlanner.open(host, SourceOptions.parse(source), "bench", begins=True)
        try:
            start, took = await planner.initial(), []
            for _ in range(BATCHES):
                begun = time.perf_counter()
                start = await planner.latest(start, BatchLimit(BATCH))
                took.append(time.perf_counter() - begun)
            return took
        finally:
            await planner.close()
    finally:
        await host.close()


async def _fill(host: Host, topic: TopicName, messages: int) -> None:
    layout = await host.topics.layout(topic)
    buffers = [(await host.segment(str(layout.name_of(one.id)))).buffer for one in layout.active()]
    data = encode_entry([EntryMessage(None, b"", (), 0, 0)], "bench", None)
    entries = [messages // ENTRY_MESSAGES * weight // sum(_WEIGHTS) for weight in _WEIGHTS]
    stored = [0] * len(entries)
    # All segments advance together, as when events arrive in order.
    for part in range(1, 1 + max(1, max(entries) // _AT_A_TIME)):
        for number, buffer in enumerate(buffers):
            upto = entries[number] * part // max(1, max(entries) // _AT_A_TIME)
            while stored[number] < upto:
                some = min(64, upto - stored[number])
                await buffer.append(tuple(Append(data, ENTRY_MESSAGES) for _ in range(some)))
                stored[number] += some
