"""Decisions whether a written batch may be committed: pure, no I/O.

A batch with acknowledgments is judged by its ranges, never by its number, because numbers start over with a new
checkpoint. A batch without acknowledgments can be judged only by its number, and only within one query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from txnframework.model.positions import Position
from txnframework.model.transactions import Application, BatchID
from txnframework_spark.errors import ApplicationMixed, Diverged, MixedBatch, NotJudgeable, StateLost
from txnframework_spark.microbatch.registration import Range

JOBS: Final = "batch jobs"
"""The query name that all batch jobs of an application share, because their versions are counted together."""


class BatchVerdict(Enum):
    """The decision about a written batch."""

    FRESH = "fresh"
    """Commit it: nothing of it was committed before."""

    REPLAY = "replay"
    """Abort it and report success: all of it was committed before."""

    UNACKNOWLEDGED = "unacknowledged"
    """The batch has no acknowledgments; the application record decides."""


@dataclass(frozen=True, slots=True)
class AcknowledgedRange:
    """A range that a batch read of a subscription, and the current cursor of the subscription."""

    topic: str
    subscription: str
    range: Range
    cursor: Position
    cursor_incarnation: int


def judge_batch(acknowledged: Sequence[AcknowledgedRange]) -> BatchVerdict:
    """Return the verdict over all ranges of a batch.

    Positions are comparable only under one incarnation of the cursor. After a seek they belong to another incarnation,
    and a commit would silently undo the seek.

    :raises Diverged: a cursor was moved by a seek, or lies inside of a range.
    :raises MixedBatch: some ranges were committed before and others not.
    """
    verdicts = {found for found in map(_judge_one, acknowledged) if found is not None}
    if not verdicts:
        return BatchVerdict.UNACKNOWLEDGED
    if len(verdicts) > 1:
        raise MixedBatch(
            "the batch contains both messages that were processed before and messages that were not; restore the"
            " checkpoint that belongs to the subscriptions, or delete it to continue from the cursors"
        )
    return verdicts.pop()


def _judge_one(found: AcknowledgedRange) -> BatchVerdict | None:
    planned = found.range
    if planned.start >= planned.end:
        return None
    if planned.incarnation != found.cursor_incarnation:
        raise Diverged(
            found.topic,
            found.subscription,
            f"its cursor on {planned.segment} was moved by a seek since the batch was planned",
        )
    if planned.end <= found.cursor:
        return BatchVerdict.REPLAY
    if planned.start >= found.cursor:
        return BatchVerdict.FRESH
    raise Diverged(
        found.topic,
        found.subscription,
        f"the cursor on {planned.segment} is at {found.cursor}, inside of the batch's range"
        f" {planned.start} to {planned.end}",
    )


def judge_by_version(application: Application, batch: BatchID, rows: int, reset: bool) -> BatchVerdict:
    """
    Return the verdict over a batch without acknowledgments that wrote ``rows`` rows.

    :raises NotJudgeable: the query is new to an application with committed batches, and ``reset`` is off.
    """
    mine = [known for known in application.committed if known.query == batch.query]
    if any(known.version >= batch.version for known in mine):
        return BatchVerdict.REPLAY
    if mine or not application.committed or reset:
        return BatchVerdict.FRESH
    if not rows:
        # Dropped, not committed. If this batch was committed, the next batch of the query would count as judged,
        # although nothing is known about it.
        return BatchVerdict.REPLAY
    raise NotJudgeable(
        f"query {batch.query} is new to application {batch.application}, and without groupId it is unknown whether its"
        " messages were processed before; restore the checkpoint, use another txnAppId, or set txnAppReset=true if"
        " they"
        " may be processed again"
    )


def judge_job(application: Application, version: int) -> int | None:
    """Return the last committed version of the application's batch jobs if ``version`` is a replay, else None."""
    last = max((known.version for known in application.committed if known.query == JOBS), default=-1)
    return last if version <= last else None


def require_kind(application: Application, query: str) -> None:
    """
    Raise ApplicationMixed if the application has committed batches of the other kind, stream or batch jobs.

    Spark counts a stream's batches within a query; users count the versions of jobs. The two counts are not comparable.
    """
    others = [known.query for known in application.committed if (known.query == JOBS) != (query == JOBS)]
    if others and query == JOBS:
        raise ApplicationMixed(application.application, f"the stream of query {others[-1]}", "a batch job")
    if others:
        raise ApplicationMixed(application.application, "batch jobs", "a stream")


def require_whole_state(application: Application, batch: BatchID) -> None:
    """
    Raise StateLost unless the state from which the batch was computed belongs to the last committed batch.

    State is stored in the checkpoint. A new query has none, and an older checkpoint has an older state. From an older
    state, replays need not have the boundaries of the original batches. They are dropped, so their output would be
    lost. Only the last batch may be replayed, after a kill between the decision and Spark's own record: its boundaries
    are unchanged.
    """
    if not application.committed:
        return
    mine = [known.version for known in application.committed if known.query == batch.query]
    if not mine:
        raise StateLost(batch.application, f"query {batch.query} is new to the application, so its state is empty")
    if batch.version < max(mine):
        raise StateLost(
            batch.application,
            f"it has committed batch {max(mine)}, but the checkpoint continues with batch {batch.version}",
        )
