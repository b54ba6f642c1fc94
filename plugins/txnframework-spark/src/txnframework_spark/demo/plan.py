"""The plan of the demo's faults: pure.

The pipeline is started once for every ``Start``. The stops of a start are pause points that it reaches in order. At a
``SPLIT`` it waits, segments are split under its open transaction, and it continues. At a ``KILL`` it waits, and its
Python and JVM get SIGKILL. The last start has no stops and runs to the end of the input.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from txnframework_spark.microbatch.pause import ACKS_PUT, COMMITTED, MID_WRITE, PLANNED

BATCHES_WANTED: Final = 13
SEGMENTS: Final = 2
_ENTRIES_A_BATCH: Final = 12
_SPREAD_BATCHES_MIN: Final = 10
_FIRST_PART: Final = 0.65


POINT_MEANINGS: Final = {
    PLANNED: "planned by Spark, not yet registered with the subscription",
    MID_WRITE: "half of its rows durable in an open transaction",
    ACKS_PUT: "acknowledgments put, the transaction still open",
    COMMITTED: "the transaction COMMITTED, Spark's commits/N absent",
}
"""The points where the demo kills, and the state of a batch at each."""

POINT_NAMES: Final = {
    PLANNED: "planned, not registered",
    MID_WRITE: "in mid-write",
    ACKS_PUT: "acks put, still open",
    COMMITTED: "COMMITTED, Spark unaware",
}
"""The same in short words, for a list of steps."""


class Deed(Enum):
    """The fault that is applied while the pipeline waits."""

    KILL = "kill"
    SPLIT = "split"


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop: at ``point`` in ``batch`` (as the query numbers them) the pipeline waits and ``deed`` is applied."""

    point: str
    batch: int
    deed: Deed = Deed.KILL


@dataclass(frozen=True, slots=True)
class Start:
    """One start of the pipeline; ``lose_checkpoint``: Spark's checkpoint directory is deleted afterwards."""

    stops: tuple[Stop, ...] = ()
    lose_checkpoint: bool = False


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a run, in rows: a micro-batch, an entry, the part of the input that is loaded at the beginning.

    ``batches``: the minimum number of batches; a batch may exceed its size by one entry of each segment.
    """

    batch: int
    entry: int
    first_part: int
    batches: int


def sizes_for(rows: int, batch: int | None = None) -> Sizes:
    """Return the sizes for an input of so many rows; ``batch``: requested rows in a micro-batch, if any."""
    batch = batch if batch is not None else -(-rows // BATCHES_WANTED)
    entry = max(1, batch // _ENTRIES_A_BATCH)
    batches = max(1, rows // (batch + SEGMENTS * entry))
    return Sizes(batch, entry, first_part=max(1, round(rows * _FIRST_PART)), batches=batches)


def make_plan(batches: int) -> tuple[Start, ...]:
    """Return the faults for a pipeline of at least so many batches.

    Every plan kills at every point, including one where the header of batch 0 is COMMITTED and Spark does not know it.
    It splits in mid-write of a transaction that then commits. It deletes the checkpoint right after a commit that only
    the store knows: the new query must find that commit. With few batches, all faults hit batch 0, which is repeated
    after each kill.
    """
    if batches < _SPREAD_BATCHES_MIN:
        return (
            Start((Stop(PLANNED, 0),)),
            Start((Stop(MID_WRITE, 0),)),
            Start((Stop(MID_WRITE, 0, Deed.SPLIT), Stop(ACKS_PUT, 0))),
            Start((Stop(COMMITTED, 0),), lose_checkpoint=True),
            Start(),
        )
    return (
        Start((Stop(COMMITTED, 0),)),
        Start((Stop(PLANNED, 2),)),
        Start((Stop(MID_WRITE, 3),)),
        Start((Stop(MID_WRITE, 4, Deed.SPLIT), Stop(ACKS_PUT, 5))),
        Start((Stop(COMMITTED, 7),), lose_checkpoint=True),
        # A new query: its batches count from 0 again, and must not be mistaken for those of the old one.
        Start((Stop(COMMITTED, 0),)),
        Start(),
    )


def stops_in(plan: tuple[Start, ...], deed: Deed) -> tuple[Stop, ...]:
    """Return all stops of one kind, in order."""
    return tuple(stop for start in plan for stop in start.stops if stop.deed is deed)
