"""Whether a batch that was written may be committed: pure decisions, no I/O.

A batch that acknowledges is judged by its ranges, never by its number: numbers start over with a new checkpoint. One
that acknowledges nothing can be judged by its number only, and that within one query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from txnframework.model.positions import Position
from txnframework.model.transactions import Application, BatchID
from txnframework_spark.errors import ApplicationMixed, Diverged, MixedBatch, NotJudgeable, StateLost
from txnframework_spark.microbatch.ranges import Range

JOBS: Final = "batch jobs"
"""What stands for the query of all batch jobs of an application, whose versions are counted together."""


class Verdict(Enum):
    """What is to be done with a batch that was written."""

    FRESH = "fresh"
    """Commit it: nothing of it was committed before."""

    REPLAY = "replay"
    """Abort it and say nothing: all of it was committed before."""

    UNACKNOWLEDGED = "unacknowledged"
    """Nothing to acknowledge; the application record has to tell."""


@dataclass(frozen=True, slots=True)
class AcknowledgedRange:
    """A range that a batch read of a subscription, and where the subscription's cursor is."""

    topic: str
    subscription: str
    range: Range
    cursor: Position
    cursor_incarnation: int


def judge(acknowledged: Sequence[AcknowledgedRange]) -> Verdict:
    """Return the verdict over all ranges of a batch; Diverged or MixedBatch where there is none.

    Positions are compared only under one incarnation of the cursor: after a seek the same numbers mean something else,
    and committing would silently take the seek back.
    """
    verdicts = {found for found in map(_judge_one, acknowledged) if found is not None}
    if not verdicts:
        return Verdict.UNACKNOWLEDGED
    if len(verdicts) > 1:
        raise MixedBatch(
            "the batch holds messages that were processed before together with others that were not; restore the"
            " checkpoint that belongs to the subscriptions, or delete it to go on from the cursors"
        )
    return verdicts.pop()


def _judge_one(found: AcknowledgedRange) -> Verdict | None:
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
        return Verdict.REPLAY
    if planned.start >= found.cursor:
        return Verdict.FRESH
    raise Diverged(
        found.topic,
        found.subscription,
        f"the cursor on {planned.segment} is at {found.cursor}, inside of the batch's range"
        f" {planned.start} to {planned.end}",
    )


def judge_by_version(application: Application, batch: BatchID, rows: int, reset: bool) -> Verdict:
    """
    Return the verdict over a batch that acknowledges nothing and wrote ``rows`` rows.

    :raises NotJudgeable: its query is new to an application that has committed batches, and it is not to be ``reset``.
    """
    mine = [known for known in application.committed if known.query == batch.query]
    if any(known.version >= batch.version for known in mine):
        return Verdict.REPLAY
    if mine or not application.committed or reset:
        return Verdict.FRESH
    if not rows:
        # Dropped, not committed: as a committed batch of its query it would vouch for the next one, of which nothing
        # is known either.
        return Verdict.REPLAY
    raise NotJudgeable(
        f"query {batch.query} is new to application {batch.application}, and without groupId nothing tells whether its"
        " messages were processed before; restore the checkpoint, use another txnAppId, or set txnAppReset=true if they"
        " may be processed again"
    )


def judge_job(application: Application, version: int) -> int | None:
    """Return the last committed version of the application's batch jobs if it makes ``version`` a replay, else None."""
    last = max((known.version for known in application.committed if known.query == JOBS), default=-1)
    return last if version <= last else None


def require_kind(application: Application, query: str) -> None:
    """
    Raise ApplicationMixed if what ``query`` is not, a stream or batch jobs, has committed under this application.

    A stream's batches are counted by Spark within a query, versions of jobs by whoever starts them: neither count says
    anything about the other's.
    """
    others = [known.query for known in application.committed if (known.query == JOBS) != (query == JOBS)]
    if others and query == JOBS:
        raise ApplicationMixed(application.application, f"the stream of query {others[-1]}", "a batch job")
    if others:
        raise ApplicationMixed(application.application, "batch jobs", "a stream")


def require_whole_state(application: Application, batch: BatchID) -> None:
    """
    Raise StateLost unless the state that the batch was computed from belongs to the batch committed last.

    State lives in the checkpoint. A new query has none, and an older checkpoint has an older one: batches that were
    dropped as replays are not cut as they were the first time, so what they would have put out is never written.
    Only the last batch may come again: killed between the decision and Spark's own record, it is cut as before.
    """
    if not application.committed:
        return
    mine = [known.version for known in application.committed if known.query == batch.query]
    if not mine:
        raise StateLost(batch.application, f"query {batch.query} is new to it, so its state is empty")
    if batch.version < max(mine):
        raise StateLost(batch.application, f"its batch {max(mine)} is committed and batch {batch.version} came again")
