"""The size of one micro-batch: ``maxOffsetsPerTrigger``, ``minOffsetsPerTrigger`` and ``maxTriggerDelay``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from txnframework.broker import Host
from txnframework.model.positions import Position
from txnframework_spark.options.source import SourceOptions
from txnframework_spark.source.alignment import Alignment, Taken
from txnframework_spark.source.backlog import Backlog, Waiting
from txnframework_spark.source.planning import shares

Ends = Mapping[str, Position]


@dataclass(slots=True)
class Admission:
    """Decides the end of each segment in a batch, from counts and times of entries, without reading the entries."""

    host: Host
    options: SourceOptions
    _backlog: Backlog = field(init=False)
    _begun_ms: int = field(init=False)
    _too_few: tuple[Ends, Ends] | None = None

    def __post_init__(self) -> None:
        self._backlog = Backlog(self.host)
        self.begin()

    def begin(self) -> None:
        """Record the begin of a batch, from which ``maxTriggerDelay`` is counted."""
        self._begun_ms = self.host.environment.now_ms()
        self._too_few = None

    async def enough(self, starts: Ends, ends: Ends, messages_min: int) -> bool:
        """Return whether ``messages_min`` messages wait, or the last batch began ``maxTriggerDelay`` ago."""
        if self.host.environment.now_ms() - self._begun_ms >= self.options.max_trigger_delay_ms:
            return True
        if self._too_few == (starts, ends):
            # Spark asks again every few milliseconds, and nothing has changed.
            return False
        waiting = 0
        for name, at in starts.items():
            if at < ends[name] and waiting < messages_min:
                waiting += (await self._backlog.count(name, at, ends[name], messages_min)).messages
        self._too_few = None if waiting >= messages_min else (starts, ends)
        return waiting >= messages_min

    async def admitted(
        self, starts: Ends, ends: Ends, messages_max: int | None, parents: Collection[str]
    ) -> dict[str, Position]:
        """
        Return the end of each segment: about ``messages_max`` messages over all of them, by whole entries.

        :param parents: segments whose children wait until these are finished. Messages of children were stored after
            those of their parents, and are read in a later batch. So with ``alignSegments`` no segment is read beyond
            the time up to which the parents are read.
        """
        parents = parents if self.options.align_segments else ()
        if messages_max is None and not any(starts[name] < ends[name] for name in parents):
            return dict(ends)
        waiting = {
            name: await self._backlog.waiting(name, at, ends[name]) for name, at in starts.items() if at < ends[name]
        }
        # If no message waits before the end, as after the last entry of a closed ledger, the end is admitted. Otherwise
        # a segment that is sealed there would never be finished, and its children would never begin.
        empty = {name: (one.upto, 0) for name, one in waiting.items() if not one.messages}
        taken: Taken = {}
        # A parent with only its end left is finished first; its children are then read with all other segments.
        if not any(name in empty for name in parents):
            left = {name: one for name, one in waiting.items() if one.messages}
            taken = await self._taken(left, messages_max, parents)
        taken |= empty
        self._backlog.admit(taken)
        return {name: taken[name][0] if name in taken else at for name, at in starts.items()}

    async def _taken(self, waiting: Mapping[str, Waiting], messages_max: int | None, parents: Collection[str]) -> Taken:
        bounds = [one.stored_ms for name, one in waiting.items() if name in parents and one.stored_ms is not None]
        if bounds:
            taken = await Alignment(self._backlog, waiting).upto(min(bounds))
            waiting = {
                name: Waiting(one.after, taken[name][0], taken[name][1])
                for name, one in waiting.items()
                if taken[name][1]
            }
        total = sum(one.messages for one in waiting.values())
        if messages_max is None or total <= messages_max:
            return {name: (one.upto, one.messages) for name, one in waiting.items()}
        if self.options.align_segments:
            return await Alignment(self._backlog, waiting).divided(messages_max)
        return await self._shared(waiting, messages_max)

    async def _shared(self, waiting: Mapping[str, Waiting], messages_max: int) -> Taken:
        """Divide a batch in proportion to the waiting messages, regardless of their times."""
        taken: Taken = {}
        for name, share in shares({name: one.messages for name, one in waiting.items()}, messages_max).items():
            one = waiting[name]
            taken[name] = one.upto, one.messages
            if share < one.messages:
                counted = await self._backlog.count(name, one.after, one.upto, share)
                # Without messages the rest was trimmed since it was counted, and is skipped.
                if counted.messages:
                    taken[name] = counted.upto, counted.messages
        return taken
