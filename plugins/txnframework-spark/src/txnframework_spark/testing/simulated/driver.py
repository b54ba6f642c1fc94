"""One run of a query: the behaviour of Spark's driver and its tasks, and the checkpoint that it writes."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa

from txnframework.broker import Host
from txnframework.errors import Conflict, OutcomeUnknown, VersionMismatch
from txnframework.model.entries import EntryView
from txnframework.model.metadata import Expect, Key, Put
from txnframework.model.transactions import State
from txnframework_simulation import history
from txnframework_simulation.workloads import RecordedClient
from txnframework_spark.microbatch.batch import MicroBatch, batch_id, begin
from txnframework_spark.microbatch.registration import register
from txnframework_spark.options.sink import SinkOptions
from txnframework_spark.process import retry_unavailable
from txnframework_spark.sink.branch_writer import open_attempt_writer
from txnframework_spark.sink.commit import Staged, commit_staged
from txnframework_spark.source.admission import BatchLimit
from txnframework_spark.source.offsets import Offset, from_json
from txnframework_spark.source.partitions import SegmentPartition
from txnframework_spark.source.planner import InputPlanner
from txnframework_spark.source.reader import PageReader

_CURRENT: Final = Key("/simulated-checkpoint/current")


class Overtaken(Conflict):
    """Another run has written another offset for the same batch to this checkpoint; Spark stops the query."""


class CheckpointContent(msgspec.Struct, frozen=True, kw_only=True):
    """
    The content of a checkpoint.

    ``offsets``: one offset for each batch. ``commits``: the number of finished batches.
    """

    query: str
    offsets: tuple[dict[str, Any], ...] = ()
    commits: int = 0


class Checkpoint:
    """
    One checkpoint directory.

    It is stored in the metadata store, where it survives every process, under a key that the framework does not use.
    """

    def __init__(self, host: Host, name: str) -> None:
        self.name = name
        self._host = host
        self._key = Key(f"/simulated-checkpoint/of/{name}")

    @classmethod
    async def current(cls, host: Host) -> Checkpoint | None:
        """Return the checkpoint with which a new run starts; None: there was no run yet."""
        found = await retry_unavailable(host, lambda: host.metadata.get(_CURRENT))
        return None if found is None else cls(host, found.value.decode())

    async def use(self) -> None:
        """Make new runs start with this checkpoint."""
        put = Put(_CURRENT, self.name.encode(), Expect.ANY)
        await retry_unavailable(self._host, lambda: self._host.metadata.put(put))

    async def load(self) -> CheckpointContent | None:
        """Return its content."""
        found = await retry_unavailable(self._host, lambda: self._host.metadata.get(self._key))
        return None if found is None else msgspec.json.decode(found.value, type=CheckpointContent)

    async def make(self, kept: CheckpointContent) -> None:
        """Create it with the saved content of another one."""
        put = Put(self._key, msgspec.json.encode(kept), Expect.ANY)
        await retry_unavailable(self._host, lambda: self._host.metadata.put(put))

    async def store_offset(self, batch: int, end: dict[str, Any]) -> None:
        """
        Store the end of a batch before it runs; a stored end is final.

        :raises Overtaken: another run has stored another end.
        """

        def edit(kept: CheckpointContent) -> CheckpointContent:
            if len(kept.offsets) > batch:
                if kept.offsets[batch] != end:
                    raise Overtaken(f"batch {batch} of checkpoint {self.name} was planned by another run")
                return kept
            return msgspec.structs.replace(kept, offsets=(*kept.offsets, end))

        await self._change(edit)

    async def store_commit(self, batch: int) -> None:
        """Store that a batch is finished."""
        await self._change(lambda kept: msgspec.structs.replace(kept, commits=max(kept.commits, batch + 1)))

    async def forget_commits(self, commits: int) -> None:
        """Reduce the number of finished batches; the batches that are repeated are planned as before."""
        await self._change(lambda kept: msgspec.structs.replace(kept, commits=min(kept.commits, commits)))

    async def _change(self, edit: Callable[[CheckpointContent], CheckpointContent]) -> None:
        async def once() -> None:
            while True:
                found = await self._host.metadata.get(self._key)
                assert found is not None
                before = msgspec.json.decode(found.value, type=CheckpointContent)
                after = edit(before)
                if after == before:
                    return
                try:
                    await self._host.metadata.put(Put(self._key, msgspec.json.encode(after), found.version))
                except (VersionMismatch, OutcomeUnknown):
                    continue
                return

        await retry_unavailable(self._host, once)


ARROW: Final = ">"
"""The separator in an output's value between the input's value and the incarnation of the cursor."""
TASKS: Final = 2
LOST_ATTEMPTS: Final = 0.1
PLANNED_MAX: Final = 5
"""The maximum number of messages in a batch."""

Rows = list[tuple[str, str]]


@dataclass(frozen=True)
class SimulatedDriver:
    """
    One run: it plans, reads, stages and commits one batch after the other.

    ``pause`` is awaited at points where a batch may be delayed; ``chance`` decides which task attempts are lost.
    """

    recorded: RecordedClient
    planner: InputPlanner
    sink: SinkOptions
    checkpoint: Checkpoint
    query: str
    run: str
    follows: str | None
    chance: random.Random
    pause: Callable[[], Awaitable[None]]

    @property
    def host(self) -> Host:
        """The host of this process."""
        return self.recorded.client.host

    async def batch(self) -> bool:
        """Run the next batch, or repeat one that was planned and is not known to be committed; False: no new data."""
        kept = await self.checkpoint.load()
        assert kept is not None
        number = kept.commits
        start = from_json(kept.offsets[number - 1]) if number else await self.planner.initial()
        if len(kept.offsets) > number:
            end = from_json(kept.offsets[number])
        else:
            end = await self.planner.latest(start, BatchLimit(PLANNED_MAX))
            if end == start:
                return False
            await self.checkpoint.store_offset(number, end.to_json())
        await self.pause()
        await self._run(number, start, end)
        await self.checkpoint.store_commit(number)
        return True

    async def _run(self, number: int, start: Offset, end: Offset) -> None:
        facts = MicroBatch(self.query, self.run, number)
        rows: Rows = []
        for partition in await self.planner.partitions(start, end):
            rows += await self._read(partition, facts)
        staged = []
        for task in range(TASKS):
            mine = rows[task::TASKS]
            if self.chance.random() < LOST_ATTEMPTS:
                await self._stage(facts, mine)  # an attempt whose executor is lost before its report
            staged.append(await self._stage(facts, mine))
            await self.pause()
        await self._commit(number, tuple(staged))

    async def _read(self, partition: SegmentPartition, facts: MicroBatch) -> Rows:
        registration = partition.registration
        incarnation = 0
        if registration is not None:
            await retry_unavailable(self.host, lambda: register(self.host.metadata, facts, registration))
            incarnation = next(one.incarnation or 0 for one in registration.ranges if one.segment == partition.segment)
        await self.pause()
        pages = await PageReader.open(self.host, partition)
        rows: Rows = []
        try:
            while page := await pages.following():
                for entry in page:
                    view = EntryView(entry.data, entry.position, partition.segment)
                    if view.branch is None or view.branch not in partition.aborted:
                        values = ((message.value or b"").decode() for message in view.messages())
                        rows += [(value, f"{value}{ARROW}{incarnation}") for value in values]
        finally:
            await pages.close()
        return rows

    async def _stage(self, facts: MicroBatch, rows: Rows) -> Staged:
        """Run one attempt of one write task."""
        application = self.sink.application_id or facts.query
        timeout_ms = self.sink.transaction_timeout_ms

        async def found() -> str:
            batch = batch_id(application, facts, self.follows)
            return str(await retry_unavailable(self.host, lambda: begin(self.host, batch, timeout_ms)))

        txn: str = await self.recorded.record(history.Begin(), found, history.Begun)
        txn_id = Staged(txn, 0, 0).txn_id
        writer, branch = open_attempt_writer(self.host, self.sink, txn_id, f"{facts.run}/{facts.batch}")
        if rows:
            keys, values = zip(*rows, strict=True)
            await writer.write(pa.RecordBatch.from_pydict({"key": list(keys), "value": list(values)}))
        await writer.finish()
        return Staged(txn, branch, writer.rows, facts, application)

    async def _commit(self, number: int, staged: tuple[Staged, ...]) -> None:
        """Commit, and record the outcome of the transaction; that of a replay is aborted."""
        txn = staged[0].txn or ""
        asked = self.recorded.invoke(history.Commit(txn, tuple(one.branch for one in staged)))
        try:
            await commit_staged(self.host, self.sink, staged, number)
            state = await retry_unavailable(self.host, lambda: self.recorded.client.outcome(txn))
        except BaseException as error:
            # Recorded even after an error that reports that nothing counts, because an earlier attempt may have
            # committed.
            asked.unknown(f"{type(error).__name__}: {error}")
            raise
        if state is State.COMMITTED:
            asked.ok()
        else:
            asked.fail("it was a replay", history.Outcome(state.value))
