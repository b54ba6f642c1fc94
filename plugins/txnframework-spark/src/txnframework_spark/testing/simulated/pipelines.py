"""The workload: runs of one application that take over from each other, and feeders of their input."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

import numpy.random  # noqa: F401 - it seeds itself from the system on import: imported before the simulation begins

from txnframework_simulation.checkers import Violation
from txnframework_simulation.history import Drained, DrainTopic, History, SeenMessage
from txnframework_simulation.workloads import ActorContext, Options, RecordedClient, Workload
from txnframework_simulation.workloads.oracles import drained, sends_of
from txnframework_simulation.workloads.workload import NAMESPACE
from txnframework_spark.errors import Diverged
from txnframework_spark.microbatch.batch import load_current_run
from txnframework_spark.options.sink import SinkOptions
from txnframework_spark.options.source import SourceOptions
from txnframework_spark.source.planner import InputPlanner
from txnframework_spark.testing.simulated.driver import ARROW, Checkpoint, CheckpointContent, SimulatedDriver

INPUT: Final = f"{NAMESPACE}/in"
OUTPUT: Final = f"{NAMESPACE}/out"
GROUP: Final = "pipeline"
APPLICATION: Final = "billing"
NAME: Final = "every message is processed once"
IDLE_ROUNDS: Final = 5
"""The number of rounds without new data after which an undisturbed pipeline is regarded as finished."""
ROUND_MS: Final = 1_000


class PipelineOptions(Options, frozen=True, kw_only=True):
    """
    The behaviour of runs.

    ``group``: whether the input is acknowledged; without it the checkpoint and the application record decide.
    ``older``, ``lost``: the number of runs that start with an older checkpoint, or with a new one. ``seeks``,
    ``splits``, ``trims``, ``feeds``: the weight of each action, if that of running is 3.
    """

    group: bool = True
    segments: int = 1
    older: float = 0.2
    lost: float = 0.15
    aborts: float = 0.2
    seeks: float = 0.0
    splits: float = 0.1
    trims: float = 0.0
    feeds: float = 3.0
    transaction_timeout_ms: int = 3_000


class Pipelines(Workload[PipelineOptions]):
    """
    Drivers on several hosts that run the same pipeline; each one that starts takes over from earlier ones.

    Its rule: at the end, every input message was processed exactly once under the last incarnation of the cursor. It
    was processed at most once under each incarnation.
    """

    options_type = PipelineOptions

    @property
    def topics(self) -> dict[str, int]:
        """The input topic and the output topic, with their numbers of segments."""
        return {INPUT: self.options.segments, OUTPUT: 1}

    async def prepare(self, recorded: RecordedClient) -> None:
        """Create topics, and the first checkpoint."""
        await super().prepare(recorded)
        first = Checkpoint(recorded.client.host, "first")
        await first.make(CheckpointContent(query="query"))
        await first.use()

    async def run(self, context: ActorContext) -> None:
        """Feed and process."""
        actor = _Operator(context, self.options)
        actions = {actor.feed: self.options.feeds, actor.pipe: 3.0}
        rare = ((actor.seek, "seeks"), (actor.split, "splits"), (actor.trim, "trims"))
        await context.repeat(actions | {action: getattr(self.options, name) for action, name in rare})

    async def finish(self, context: ActorContext) -> None:
        """Process the remaining input without faults."""
        actor = _Operator(context, self.options)
        try:
            await actor.process_all()
        except Diverged:
            # After a seek the subscription continues at the new position, but the checkpoint does not.
            await actor.lose_checkpoint()
            await actor.process_all()

    def violations(self, history: History) -> list[Violation]:
        """Compare the input with the output."""
        read, written = _drained(history, INPUT), drained(history, OUTPUT)
        if read is None or written is None:
            return []
        written = [value for value in written if ARROW in value]
        sentences = [f"{value} was put out {times} times" for value, times in Counter(written).items() if times > 1]
        incarnations: defaultdict[str, set[int]] = defaultdict(set)
        for value in written:
            source, _, incarnation = value.partition(ARROW)
            incarnations[source].add(int(incarnation or 0))
        segments = {seen.value: seen.place.segment for seen in read}
        last: dict[str, int] = {}
        for value, found in incarnations.items():
            if value not in segments:
                sentences.append(f"{value} was processed and cannot be read")
            else:
                last[segments[value]] = max(last.get(segments[value], 0), *found)
        for value, segment in segments.items():
            if last.get(segment, 0) not in incarnations.get(value, ()):
                sentences.append(f"{value} was not processed, in the last incarnation of the cursor on {segment}")
        return [Violation(NAME, one, sends_of(history, one.split()[0].partition(ARROW)[0])) for one in sentences]


class _Operator:
    """One actor."""

    def __init__(self, context: ActorContext, options: PipelineOptions) -> None:
        self._context = context
        self._options = options
        self._recorded: RecordedClient = context.recorded
        self._sink = SinkOptions.of_stream(
            {"topic": OUTPUT, "txnAppId": APPLICATION, "transactionTimeoutMs": str(options.transaction_timeout_ms)}
        )
        self._source = SourceOptions.parse(
            {"subscribe": INPUT, "startingOffsets": "earliest"} | ({"groupId": GROUP} if options.group else {})
        )

    async def feed(self) -> None:
        """Send a few messages, in a transaction or outside."""
        chance = self._context.chance
        producer = await self._recorded.producer(INPUT)
        txn = await self._recorded.begin(timeout_ms=chance.choice((1_500, 5_000))) if chance.random() < 0.5 else None
        for _ in range(chance.randint(1, 3)):
            await producer.send(self._recorded.unique(), key=f"k{chance.randrange(4)}", txn=txn)
        if txn is None or chance.random() < 0.05:
            return
        if chance.random() < self._options.aborts:
            await self._recorded.abort(txn)
        else:
            await self._recorded.commit(txn)

    async def pipe(self) -> None:
        """Start a run with the current checkpoint, an older one or none, and let it run some batches."""
        drawn = self._context.chance.random()
        if drawn < self._options.lost and self._options.group:
            await self.lose_checkpoint()
        elif drawn < self._options.lost + self._options.older:
            await self._restore_older()
        driver = await self._start()
        try:
            for _ in range(self._context.chance.randint(1, 4)):
                if not await driver.batch() and self._context.likely(0.5):
                    return
        except Diverged:
            await self.lose_checkpoint()
        finally:
            await driver.planner.close()

    async def process_all(self) -> None:
        """Run batches until there is no new data."""
        driver = await self._start(disturbed=False)
        idle = 0
        try:
            while idle < IDLE_ROUNDS:
                if await driver.batch():
                    idle = 0
                    continue
                idle += 1
                environment = self._context.environment
                await environment.sleep_until(environment.now_ms() + ROUND_MS)
        finally:
            await driver.planner.close()

    async def seek(self) -> None:
        """Seek to the beginning, so that all messages are processed again."""
        if self._options.group:
            await self._recorded.seek(INPUT, GROUP, "earliest")

    async def split(self) -> None:
        """Split a segment of the input."""
        active = (await self._recorded.client.layout(INPUT)).active()
        if len(active) < 4:
            await self._recorded.split(INPUT, self._context.chance.choice(active).id)

    async def trim(self) -> None:
        """Sweep, trim and collect."""
        await self._recorded.trim(INPUT)

    async def lose_checkpoint(self) -> None:
        """Continue with a new query, which begins at the cursor."""
        checkpoint = Checkpoint(self._recorded.client.host, self._recorded.unique())
        await checkpoint.make(CheckpointContent(query=f"query {checkpoint.name}"))
        await checkpoint.use()

    async def _restore_older(self) -> None:
        """
        Continue with a copy of the checkpoint from some batches ago.

        Without acknowledgments a batch is identified only by its number, so it must be planned as before: then only the
        record of commits is lost.
        """
        host = self._recorded.client.host
        current = await Checkpoint.current(host)
        assert current is not None
        kept = await current.load()
        assert kept is not None
        commits = self._context.chance.randint(0, kept.commits)
        if not self._options.group:
            await current.forget_commits(commits)
            return
        offsets = kept.offsets[: commits + self._context.chance.randint(0, 1)]
        older = Checkpoint(host, self._recorded.unique())
        await older.make(CheckpointContent(query=kept.query, offsets=offsets, commits=commits))
        await older.use()

    async def _start(self, disturbed: bool = True) -> SimulatedDriver:
        host, chance = self._recorded.client.host, self._context.chance
        checkpoint = await Checkpoint.current(host)
        assert checkpoint is not None, "it is made before the first run"
        kept = await checkpoint.load()
        assert kept is not None
        run = self._recorded.unique()
        follows = await load_current_run(host, APPLICATION) if chance.random() < 0.5 else None
        planner = await InputPlanner.open(host, self._source, f"spark source {run}", not kept.offsets)

        async def pause() -> None:
            if disturbed and chance.random() < 0.1:
                await self._context.wait(self._options.transaction_timeout_ms * 2)

        return SimulatedDriver(self._recorded, planner, self._sink, checkpoint, kept.query, run, follows, chance, pause)


def _drained(history: History, topic: str) -> tuple[SeenMessage, ...] | None:
    for call in reversed(history.calls()):
        if isinstance(call.operation, DrainTopic) and call.operation.topic == topic and isinstance(call.reply, Drained):
            return call.reply.messages
    return None
