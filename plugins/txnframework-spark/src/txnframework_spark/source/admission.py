"""How much one micro-batch takes: ``maxOffsetsPerTrigger``, ``minOffsetsPerTrigger`` and ``maxTriggerDelay``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from txnframework.broker import Host
from txnframework.model.ledger import Counted
from txnframework.model.positions import EntryRange, Position
from txnframework_spark.options.source import SourceOptions
from txnframework_spark.source.planning import shares

Ends = Mapping[str, Position]


@dataclass(slots=True)
class Admission:
    """Counts what waits between two places of each segment, without reading it."""

    host: Host
    options: SourceOptions
    _begun_ms: int = field(init=False)
    _too_few: tuple[Ends, Ends] | None = None

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A batch begins now: from here on ``maxTriggerDelay`` counts."""
        self._begun_ms = self.host.environment.now_ms()
        self._too_few = None

    async def enough(self, starts: Ends, ends: Ends, messages_min: int) -> bool:
        """Return whether so many messages wait, or the last batch began so long ago that fewer will do."""
        if self.host.environment.now_ms() - self._begun_ms >= self.options.max_trigger_delay_ms:
            return True
        if self._too_few == (starts, ends):
            # Spark asks again every few milliseconds, and nothing has come.
            return False
        waiting = 0
        for name, at in starts.items():
            if at < ends[name] and waiting < messages_min:
                waiting += (await self._count(name, at, ends[name], messages_min)).messages
        self._too_few = None if waiting >= messages_min else (starts, ends)
        return waiting >= messages_min

    async def admitted(self, starts: Ends, ends: Ends, messages_max: int) -> dict[str, Position]:
        """Return ends that admit about ``messages_max`` messages, by whole entries."""
        waiting: dict[str, int] = {}
        reach: dict[str, Position] = {}
        for name, at in starts.items():
            if at < ends[name]:
                counted = await self._count(name, at, ends[name], messages_max)
                waiting[name], reach[name] = counted.messages, counted.upto
        given = shares({name: count for name, count in waiting.items() if count}, messages_max)
        # Where nothing waits up to the end, as behind the last entry of a ledger that was closed, the end is reached:
        # left before it, a segment that is sealed there would never be finished, nor its children begun.
        admitted = {name: at if waiting.get(name) else ends[name] for name, at in starts.items()}
        for name, share in given.items():
            upto = reach[name]
            if share < waiting[name]:
                upto = (await self._count(name, starts[name], ends[name], share)).upto
            admitted[name] = upto
        return admitted

    async def _count(self, name: str, after: Position, upto: Position, messages_max: int) -> Counted:
        ledger = (await self.host.segment(name)).ledger
        return await ledger.count(EntryRange(after, upto), messages_max)
