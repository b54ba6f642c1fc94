"""What Spark does around a source and a sink, in one event loop over stores in memory.

Spark itself is too slow to be stopped between any two steps of many scenarios; what it calls, and in which order, was
taken from watching it. ``tests/spark`` runs the real thing.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

import txnframework_memory.plugin
import txnframework_metadata.plugin
from txnframework.broker import Host, open_host
from txnframework.config import load_config
from txnframework.model.entries import EntryMessage, EntryView, encode_entry
from txnframework.model.ids import Branch
from txnframework.model.key_hashes import key_hash
from txnframework.model.ledger import Append
from txnframework.model.names import TopicName
from txnframework.model.positions import EARLIEST, EntryRange, Limit
from txnframework.model.reads import ReadRequest
from txnframework.plugin import load_plugins
from txnframework.testing import VirtualEnvironment
from txnframework_spark.microbatch.batch import MicroBatch, batch_id, begin
from txnframework_spark.microbatch.registration import register
from txnframework_spark.options.sink import SinkOptions
from txnframework_spark.options.source import SourceOptions
from txnframework_spark.sink.branch_writer import BranchWriter
from txnframework_spark.sink.commit import Staged, commit_staged
from txnframework_spark.source.admission import BatchLimit
from txnframework_spark.source.backlog import COUNT_MAX
from txnframework_spark.source.offsets import Offset, from_json
from txnframework_spark.source.planner import InputPlanner
from txnframework_spark.source.reader import page_batches

_numbers = itertools.count()
VALUES = pa.schema([("value", pa.binary())])


@dataclass
class World:
    """Stores, an input topic ``in`` and an output topic ``out``."""

    config: dict[str, Any]
    stack: AsyncExitStack
    host: Host
    environment: VirtualEnvironment | None = None

    async def open_host(self) -> Host:
        """Open another process's host."""
        registry = load_plugins((txnframework_memory.plugin, txnframework_metadata.plugin))
        host = await open_host(load_config(self.config), registry, self.environment)
        self.stack.push_async_callback(host.close)
        return host

    async def publish(self, *values: str, topic: str = "in") -> None:
        """Append messages outside of transactions, each as its own entry, by key."""
        name = TopicName.parse(topic)
        for value in values:
            layout = await self.host.topics.finish_changes(name)
            message = EntryMessage(value.encode(), value.encode(), (), 0, 0)
            segment = layout.route(key_hash(value.encode()))
            opened = await self.host.segment(str(layout.name_of(segment.id)))
            await opened.buffer.append((Append(encode_entry([message], "test", None)),))

    async def read(self, topic: str = "out") -> list[str]:
        """Return the values of all committed messages, segment by segment."""
        layout = await self.host.topics.layout(TopicName.parse(topic))
        found: list[str] = []
        for segment in layout.in_order():
            buffer = (await self.host.segment(str(layout.name_of(segment.id)))).buffer
            await buffer.max_read_position()
            after = EARLIEST
            while True:
                page = await buffer.read(ReadRequest(after, Limit(100)))
                for entry in page.entries:
                    found += [message.value.decode() for message in EntryView(entry.data).messages()]
                if page.upto == after:
                    break
                after = page.upto
        return found

    async def cursor(self, group: str = "g", topic: str = "in") -> str:
        """Return the first segment's cursor as text."""
        layout = await self.host.topics.layout(TopicName.parse(topic))
        name = str(layout.name_of(layout.in_order()[0].id))
        return str((await (await self.host.subscription(str(layout.topic), group, name)).cursor.load()).mark_delete)

    async def run(
        self, query: str = "q", source: dict[str, str] | None = None, sink: dict[str, str] | None = None
    ) -> Run:
        """Start a run of a query, as another driver process would."""
        host = await self.open_host()
        given = {"subscribe": "in", "groupId": "g", "startingOffsets": "earliest"} if source is None else source
        options = SourceOptions.parse(given)
        planner = await InputPlanner.open(host, options, f"spark source {next(_numbers)}")
        self.stack.push_async_callback(planner.close)
        return Run(host, planner, SinkOptions.of_stream(sink or {"topic": "out", "txnAppId": "app"}), query)


@dataclass
class Run:
    """One run of one query."""

    host: Host
    planner: InputPlanner
    sink: SinkOptions
    query: str
    name: str = field(default_factory=lambda: str(uuid.uuid4()))
    follows: str | None = None

    def facts(self, batch: int) -> MicroBatch:
        return MicroBatch(self.query, self.name, batch)

    async def plan(self, start: dict[str, Any] | None, messages_max: int | None = None) -> tuple[Offset, Offset]:
        """Return start and end of the next batch; ``start`` None: a new query."""
        for _ in range(50):
            # What was published is announced to other hosts a few steps of the loop later.
            await asyncio.sleep(0)
        before = await self.planner.initial() if start is None else from_json(start)
        return before, await self.planner.latest(before, BatchLimit(messages_max or COUNT_MAX))

    async def read(self, batch: int, start: Offset, end: Offset) -> list[str]:
        """Run the read tasks; return what they read."""
        found: list[str] = []
        for partition in await self.planner.partitions(start, end):
            if partition.registration is not None:
                await register(self.host.metadata, self.facts(batch), partition.registration)
            ledger = await self.host.ledgers.open(partition.segment)
            page = await ledger.read(EntryRange(partition.after, partition.upto), Limit(1_000))
            for rows in page_batches(page, partition, VALUES):
                found += [row["value"].decode() for row in rows.to_pylist()]
            await ledger.close()
        return found

    async def stage(self, batch: int, values: list[str]) -> Staged:
        """Run one attempt of a write task."""
        application = self.sink.application_id or self.query
        txn_id = await begin(self.host, batch_id(application, self.facts(batch), self.follows), 60_000)
        branch = Branch(txn_id, self.host.environment.random_bits(62) | 1)
        writer = BranchWriter(self.host, self.sink, branch, f"p{branch.number}")
        if values:
            await writer.write(pa.RecordBatch.from_pydict({"key": values, "value": [f"{value}!" for value in values]}))
        await writer.finish()
        return Staged(str(txn_id), branch.number, writer.rows, self.facts(batch), application)

    async def commit(self, batch: int, *messages: Staged | None) -> None:
        await commit_staged(self.host, self.sink, messages, batch)

    async def batch(self, number: int, start: dict[str, Any] | None, messages_max: int | None = None) -> dict[str, Any]:
        """Run a whole batch; return the offset that Spark keeps."""
        before, after = await self.plan(start, messages_max)
        return await self.replay(number, before, after)

    async def replay(self, number: int, start: Offset, end: Offset) -> dict[str, Any]:
        """Run a batch whose end was planned before."""
        values = await self.read(number, start, end)
        await self.commit(number, await self.stage(number, values))
        return end.to_json()


@asynccontextmanager
async def opened_world(segments: int, environment: VirtualEnvironment | None = None) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        name = f"spark{next(_numbers)}"
        config: dict[str, Any] = {
            "metadata": {"url": f"memory://{name}"},
            "transactions": {"sweep": False},
            "client": {"retry_delay_ms": 1},
        }
        world = World(config, stack, None, environment)  # type: ignore[arg-type]
        world.host = await world.open_host()
        await world.host.topics.create(TopicName.parse("in"), segments)
        await world.host.topics.create(TopicName.parse("out"), 2)
        yield world


Scenario = Callable[[World], Coroutine[Any, Any, None]]
"""What happens in a world; its stores' clock is virtual where an environment is given to ``play``."""


@pytest.fixture
def play() -> Callable[..., None]:
    """Return what runs a scenario in a new world."""

    def run(scenario: Scenario, segments: int = 1, environment: VirtualEnvironment | None = None) -> None:
        async def whole() -> None:
            async with opened_world(segments, environment) as world:
                await scenario(world)

        asyncio.run(whole())

    return run
