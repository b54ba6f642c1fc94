"""What is done to the pipeline, and when: pure.

The pipeline is started once for every ``Start``. A start's stops are pause points that it will reach, in order: at a
``SPLIT`` it is held, segments are split under its open transaction, and it is let go; at a ``KILL`` it is held and its
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
"""The points where the demo kills, and what is true of a batch at each."""

POINT_NAMES: Final = {
    PLANNED: "planned, not registered",
    MID_WRITE: "in mid-write",
    ACKS_PUT: "acks put, still open",
    COMMITTED: "COMMITTED, Spark unaware",
}
"""The same in as few words as a list of steps has room for."""


class Deed(Enum):
    """What is done while the pipeline is held."""

    KILL = "kill"
    SPLIT = "split"


@dataclass(frozen=True, slots=True)
class Stop:
    """At ``point`` in ``batch`` (as the query numbers them) the pipeline is held and ``deed`` is done."""

    point: str
    batch: int
    deed: Deed = Deed.KILL


@dataclass(frozen=True, slots=True)
class Start:
    """One start of the pipeline; ``lose_checkpoint``: afterwards Spark's checkpoint directory is deleted."""

    stops: tuple[Stop, ...] = ()
    lose_checkpoint: bool = False


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is in what, in rows: a micro-batch, an entry, the part of the input that is there at the beginning.

    ``batches``: there will be at least so many; a batch may hold one entry of each segment more than it should.
    """

    batch: int
    entry: int
    first_part: int
    batches: int


def sizes_for(rows: int, batch: int | None = None) -> Sizes:
    """Return the sizes for an input of so many rows, with ``batch`` rows in a micro-batch if that is asked for."""
    batch = batch if batch is not None else -(-rows // BATCHES_WANTED)
    entry = max(1, batch // _ENTRIES_A_BATCH)
    batches = max(1, rows // (batch + SEGMENTS * entry))
    return Sizes(batch, entry, first_part=max(1, round(rows * _FIRST_PART)), batches=batches)


def make_plan(batches: int) -> tuple[Start, ...]:
    """Return what is done to a pipeline of at least so many batches.

    Either way there is a kill at every point, one of them where the header of batch 0 is COMMITTED and Spark does not
    know it, a split in mid-write of a transaction that then commits, and a checkpoint lost right after a commit that
    only the store knows of: the new query must find it there. With few batches, everything happens in batch 0, which
    is run again after each kill.
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
        # A new query: its batches count from 0 again, which must not be taken for those of the old one.
        Start((Stop(COMMITTED, 0),)),
        Start(),
    )


def stops_in(plan: tuple[Start, ...], deed: Deed) -> tuple[Stop, ...]:
    """Return all stops of one kind, in order."""
    return tuple(stop for start in plan for stop in start.stops if stop.deed is deed)
