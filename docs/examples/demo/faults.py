"""
The faults: the moments at which they are applied, and how checkpoint and stores confirm a moment.

The pipeline is started once for every `Start`. It waits at pause points: at `mid-write@3`, half of the rows of batch 3
are stored. A kill at another moment would prove nothing. So a kill counts only if the records confirm its point.
"""

from dataclasses import dataclass
from pathlib import Path

from txnframework.model import State, Transaction
from txnframework_spark.microbatch.pause import ACKS_PUT, COMMITTED, MID_WRITE, PLANNED

BATCHES_WANTED = 13
ENTRIES_A_BATCH = 12
SEGMENTS = 2
SPREAD_BATCHES_MIN = 10
FIRST_PART = 0.65

MEANINGS = {
    PLANNED: "planned by Spark, nothing read yet",
    MID_WRITE: "half of its rows durable in an open transaction",
    ACKS_PUT: "acknowledgments put, the transaction still open",
    COMMITTED: "the transaction COMMITTED, Spark's commits/N absent",
}
"""The points where the demo kills, and the state of a batch at each."""


@dataclass(frozen=True, slots=True)
class Start:
    """
    A start of the pipeline. At `split`, segments are split under its open transaction; at `kill`, it gets SIGKILL.
    Afterwards, its checkpoint may be deleted. Points are written as POINT@BATCH.
    """

    kill: str | None = None
    split: str | None = None
    lose_checkpoint: bool = False

    @property
    def title(self) -> str:
        parts = [
            *([f"split segments at {self.split}"] if self.split else []),
            f"kill at {self.kill}" if self.kill else "run to the end",
            *(["delete the checkpoint"] if self.lose_checkpoint else []),
        ]
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes in rows: a micro-batch, an entry, and the part of the input that is loaded at the beginning."""

    batch: int
    entry: int
    first_part: int
    plan: tuple[Start, ...]

    @classmethod
    def of(cls, rows: int, batch: int | None) -> "Sizes":
        """`batch` is the requested size of a micro-batch, if any."""
        batch = batch or -(-rows // BATCHES_WANTED)
        entry = max(1, batch // ENTRIES_A_BATCH)
        # A batch may exceed its size by one entry of each segment.
        batches = rows // (batch + SEGMENTS * entry)
        return cls(batch, entry, max(1, round(rows * FIRST_PART)), make_plan(batches))


def make_plan(batches: int) -> tuple[Start, ...]:
    """
    Return the faults for a pipeline of at least so many batches.

    Every plan kills at every point. It splits under a transaction that is killed before its commit. It deletes the
    checkpoint right after a commit that only the store knows: the new query must find that commit. With few batches,
    all faults hit batch 0, which is repeated after each kill.
    """
    if batches < SPREAD_BATCHES_MIN:
        return (
            Start("planned@0"),
            Start("mid-write@0"),
            Start("acks-put@0", split="mid-write@0"),
            Start("committed@0", lose_checkpoint=True),
            Start(),
        )
    return (
        Start("committed@0"),
        Start("planned@2"),
        Start("mid-write@3"),
        Start("acks-put@5", split="mid-write@4"),
        Start("committed@7", lose_checkpoint=True),
        # A new query: its batches count from 0 again, and must not be mistaken for those of the old one.
        Start("committed@0"),
        Start(),
    )


def contradiction(point: str, checkpoint: Path, transaction: Transaction | None) -> str | None:
    """Return how the records contradict the point; None if they confirm it."""
    name, _, batch = point.partition("@")
    if not (checkpoint / "offsets" / batch).exists():
        return "Spark has not planned the batch"
    if (checkpoint / "commits" / batch).exists():
        return "Spark has already recorded the batch as committed"
    if name == PLANNED:
        return None
    if transaction is None:
        return "the batch has no transaction"
    state = State.COMMITTED if name == COMMITTED else State.OPEN
    if transaction.state is not state:
        return f"its transaction is {transaction.state.value}, not {state.value}"
    acknowledged = any(participant.subscription for participant in transaction.participants)
    if name == MID_WRITE and acknowledged:
        return "acknowledgments are already put"
    if name == ACKS_PUT and not acknowledged:
        return "no acknowledgment is put"
    if name != COMMITTED and not written_segments(transaction):
        return "its transaction has written nothing"
    return None


def written_segments(transaction: Transaction) -> set[str]:
    """Return the segments that a transaction has written to."""
    return {one.segment for one in transaction.participants if not one.subscription}
