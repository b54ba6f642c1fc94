"""A store that does not answer while a batch runs: what is done again finds what was done before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType

from txnframework.errors import Closed, OutcomeUnknown, Unavailable
from txnframework.model.entries import EntryMessage, encode_entry
from txnframework.model.ledger import Append
from txnframework.model.names import TopicName
from txnframework_memory._ledger_store import MemoryManagedLedger
from txnframework_memory._metadata_store import MemoryMetadataStore
from txnframework_spark import process
from txnframework_spark.errors import BatchNotCommitted
from txnframework_spark.options.source import SourceOptions
from txnframework_spark.sink import commit
from txnframework_spark.source.stream import TransactionalReader
from txnframework_spark.source.topics import SegmentWatcher

Play = Callable[..., None]

OPERATIONS = ("get", "put", "delete", "apply", "scan", "scan_index")


class Outage:
    """Lets one call of the metadata store fail, counted from when it is armed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._left: int | None = None
        self._error: type[Exception] = Unavailable
        self.failed = False
        for name in OPERATIONS:
            monkeypatch.setattr(MemoryMetadataStore, name, self._failing(getattr(MemoryMetadataStore, name)))

    def arm(self, calls: int, error: type[Exception]) -> None:
        self._left, self._error, self.failed = calls, error, False

    def disarm(self) -> None:
        self._left = None

    def _failing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        async def call(store: Any, *arguments: Any) -> Any:
            if self._left is None:
                return await real(store, *arguments)
            self._left -= 1
            if self._left != -1:
                return await real(store, *arguments)
            self.failed = True
            if self._error is OutcomeUnknown:
                await real(store, *arguments)
            raise self._error("the store is away for a moment")

        return call


@pytest.mark.parametrize("error", [Unavailable, OutcomeUnknown])
def test_a_decision_is_taken_in_spite_of_an_outage(
    play: Play, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """Whichever of its calls fails, done or not: the batch is committed once, and the next one goes on behind it."""
    outage = Outage(monkeypatch)

    def scenario_at(call: int) -> Callable[[Any], Any]:
        async def scenario(world: Any) -> None:
            await world.publish("a", "b")
            run = await world.run()
            start, end = await run.plan(None)
            staged = await run.stage(0, await run.read(0, start, end))
            outage.arm(call, error)
            await run.commit(0, staged)
            outage.disarm()
            await world.publish("c")
            await (await world.run()).batch(1, end.to_json())
            assert sorted(await world.read()) == ["a!", "b!", "c!"]

        return scenario

    call = 0
    while True:
        play(scenario_at(call))
        if not outage.failed:
            break
        call += 1
    assert call > 10


def test_a_committed_batch_has_not_failed_because_a_late_task_began_it_once_more(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply to the commit is lost, and when it is asked about, the application names another transaction."""
    real = commit.commit_branches

    async def scenario(world: Any) -> None:
        await world.publish("a")
        run = await world.run()
        start, end = await run.plan(None)
        staged = await run.stage(0, await run.read(0, start, end))

        async def lost(*arguments: Any) -> None:
            monkeypatch.setattr(commit, "commit_branches", real)
            await real(*arguments)
            late = await run.stage(0, ["a"])
            assert late.txn != staged.txn
            raise OutcomeUnknown("the reply was lost")

        monkeypatch.setattr(commit, "commit_branches", lost)
        await run.commit(0, staged)
        await world.publish("b")
        await run.batch(1, end.to_json())
        assert sorted(await world.read()) == ["a!", "b!"]

    play(scenario)


@pytest.mark.parametrize("source", [{"groupId": "g"}, {}])
def test_a_batch_whose_transaction_has_ended_is_told_to_be_not_committed(play: Play, source: dict[str, str]) -> None:
    """Whichever step of the decision notices it first."""

    async def scenario(world: Any) -> None:
        await world.publish("a")
        run = await world.run(source={"subscribe": "in", "startingOffsets": "earliest", **source})
        start, end = await run.plan(None)
        staged = await run.stage(0, await run.read(0, start, end))
        await commit.abort_staged(run.host, [staged])
        with pytest.raises(BatchNotCommitted):
            await run.commit(0, staged)
        assert await world.read() == []

    play(scenario)


def test_a_source_outlasts_any_number_of_outages_one_after_the_other(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is outlasted for as long as the configuration says, however many there were before."""

    async def scenario(world: Any) -> None:
        topic = TopicName.parse("in")
        host = await world.open_host()
        real, asked = host.topics.layout, 0

        async def every_other(name: TopicName) -> Any:
            nonlocal asked
            asked += 1
            if asked % 2 == 0:
                raise Unavailable("the store is away for a moment")
            return await real(name)

        monkeypatch.setattr(host.topics, "layout", every_other)
        watcher = SegmentWatcher(host, uncommitted=False)
        await watcher.layout(topic)
        for number in range(2 * host.config.client.retries_max):
            await world.host.topics.split(topic, number)
            changed = await world.host.topics.finish_changes(topic)
            async with asyncio.timeout(60):
                while (await watcher.layout(topic)).segments.keys() != changed.segments.keys():  # noqa: ASYNC110
                    await asyncio.sleep(0)
        await watcher.close()

    play(scenario)


def test_the_lag_of_a_query_is_told_in_spite_of_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Spark asks for its progress is asked again as well: an outage there would be the end of the query."""
    config = tmp_path / "txnframework.toml"
    config.write_text('[metadata]\nurl = "memory://lag"\n\n[client]\nretry_delay_ms = 1\n')
    options = {"config": str(config), "subscribe": "in", "startingOffsets": "earliest"}
    host = process.host(SourceOptions.parse(options).stores)
    topic = TopicName.parse("in")
    process.run(host.topics.create(topic, 1))
    buffer = process.run(host.segment(str(process.run(host.topics.layout(topic)).name_of(0)))).buffer
    for value in (b"a", b"b", b"c"):
        message = EntryMessage(value, value, (), 0, 0)
        process.run(buffer.append((Append(encode_entry([message], "test", None)),)))
    reader = TransactionalReader(options, StructType())
    reader.latestOffset(reader.initialOffset(), ReadMaxRows(1))
    real, failures = MemoryManagedLedger.count, [Unavailable("the store is away for a moment")]

    async def count(ledger: Any, *arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return await real(ledger, *arguments)

    monkeypatch.setattr(MemoryManagedLedger, "count", count)
    told = reader.reportLatestOffset()
    assert failures == []
    assert told is not None
    assert told["lag"]["messages"] == 2
    reader.stop()


@pytest.mark.parametrize("what", ["segment", "host"])
def test_a_source_whose_stores_are_closed_under_it_says_so(play: Play, what: str) -> None:
    """Otherwise, the source would permanently report its last known end as the end of the topic."""

    async def scenario(world: Any) -> None:
        host = await world.open_host()
        name = str((await host.topics.layout(TopicName.parse("in"))).name_of(0))
        watcher = SegmentWatcher(host, uncommitted=False)
        await watcher.follow(name)
        await settled()
        await (host.close() if what == "host" else (await host.segment(name)).buffer.close())
        await settled()
        with pytest.raises(Closed):
            await watcher.follow(name)
        await watcher.close()

    play(scenario)


async def settled() -> None:
    """Let everything that is ready run."""
    for _ in range(50):
        await asyncio.sleep(0)
