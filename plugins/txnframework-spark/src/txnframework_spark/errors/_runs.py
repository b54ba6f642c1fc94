"""Errors of running queries and jobs."""

from __future__ import annotations

from txnframework.errors import Conflict, Corrupt, NotFound, Unavailable


class CorruptOffset(Corrupt):
    """
    An offset in the checkpoint is damaged, or was written by another source.

    :known: Nothing was read.
    :retry: never
    :advice: Restore the checkpoint, or use the pipeline that wrote it.
    """

    code = "SPARK-501"


class DataLost(Conflict):
    """
    Messages of ``segment`` between ``after`` and ``first`` were trimmed before this query read them.

    :known: The query stopped before it skipped anything.
    :retry: decide
    :advice: Accept the loss with ``failOnDataLoss=false``, or delete the checkpoint. Raise the retention of the topic.
    """

    code = "SPARK-201"

    def __init__(self, segment: str, after: str, first: str) -> None:
        self.segment = segment
        self.after = after
        self.first = first
        super().__init__(
            f"messages of {segment} after {after} were trimmed before they were read (the first remaining one is after"
            f" {first}); set failOnDataLoss=false to skip them, or delete the checkpoint"
        )


class TopicLost(Conflict):
    """
    ``topic`` was deleted after the query read a part of it; ``again``: a topic of that name was created since.

    :known: The query stopped before it skipped anything.
    :retry: decide
    :advice: Accept the loss with ``failOnDataLoss=false``, or delete the checkpoint.
    """

    code = "SPARK-202"

    def __init__(self, topic: str, *, again: bool = False) -> None:
        self.topic = topic
        self.again = again
        since = " and created again" if again else ""
        super().__init__(
            f"{topic} was deleted{since} before this query had read all of it; set failOnDataLoss=false to skip"
            " the deleted messages, or delete the checkpoint"
        )


class Diverged(Conflict):
    """
    Checkpoint and subscription contradict each other, so a commit would lose or repeat messages.

    :known: The batch was not committed.
    :retry: never
    :advice: Find out who moved the subscription or restored the checkpoint, then start with a new checkpoint or seek
        the subscription.
    """

    code = "SPARK-203"

    def __init__(self, topic: str, subscription: str, reason: str) -> None:
        self.topic = topic
        self.subscription = subscription
        super().__init__(f"the checkpoint and subscription {subscription} of {topic} disagree: {reason}")


class MixedBatch(Conflict):
    """
    Some sources of the batch were committed before and others not, so it can be neither committed nor skipped.

    :known: The batch was not committed.
    :retry: never
    :advice: Start with a new checkpoint, so that every source begins at its subscription's position.
    """

    code = "SPARK-204"


class NotJudgeable(Conflict):
    """
    A new query uses an old application id, and it is unknown whether this batch was committed before.

    :known: The batch was not committed.
    :retry: never
    :advice: Keep the old checkpoint, use ``groupId``, or set ``txnAppReset=true`` after you have checked the output.
    """

    code = "SPARK-205"


class StateLost(Conflict):
    """
    The checkpointed state of a query does not belong to the last batch that ``application`` committed.

    :known: The batch was not committed.
    :retry: never
    :advice: Restore the right checkpoint, or set ``txnAppReset=true`` to continue without the state.
    """

    code = "SPARK-206"

    def __init__(self, application: str, reason: str) -> None:
        self.application = application
        super().__init__(
            f"the checkpoint does not belong to the last batch that application {application} committed: {reason};"
            " restore the right checkpoint, or set txnAppReset=true to continue without the state"
        )


class NotAcknowledged(Conflict):
    """
    ``batches`` of a query with ``groupId`` were written by a sink that did not acknowledge them.

    :known: The batches were written, and their input was not acknowledged.
    :retry: never
    :advice: Write to a sink of this format, call ``acknowledge`` in ``foreachBatch``, or leave ``groupId`` out.
    """

    code = "SPARK-207"

    def __init__(self, topic: str, subscription: str, batches: int) -> None:
        self.topic = topic
        self.subscription = subscription
        self.batches = batches
        super().__init__(
            f"batches of subscription {subscription} of {topic} are not acknowledged: write to a txnframework sink,"
            " call pyspark_txnframework.acknowledge(batch, batch_id) at the end of a foreachBatch function, or"
            " leave groupId out, so that only the checkpoint records progress; allowUnacknowledged=true disables this"
            " check"
        )


class BatchNotCommitted(Conflict):
    """
    The batch was aborted instead of committed; restarting the query runs it again.

    :known: Nothing of the batch is visible.
    :retry: reopen
    :advice: Start the query again; it repeats the batch.
    """

    code = "SPARK-208"


class PauseOrphaned(Unavailable):
    """
    The process waited at a pause point and no process is left to release it.

    :known: Nothing was changed.
    :retry: call
    :advice: Run the test again.
    """

    code = "SPARK-401"


class TopicMissing(NotFound):
    """
    Rows name ``topic``, which does not exist.

    :known: The batch was not committed.
    :retry: decide
    :advice: Create ``topic``, or correct the column that names it; then start the query again.
    """

    code = "SPARK-301"

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"{topic} does not exist; create it first: txnframework topic create {topic}")


class ApplicationMixed(Conflict):
    """
    ``application`` is used by both streams and batch jobs, whose versions are counted separately.

    :known: Nothing was written.
    :retry: never
    :advice: Use another ``txnAppId``.
    """

    code = "SPARK-209"

    def __init__(self, application: str, by: str, wanted: str) -> None:
        self.application = application
        super().__init__(
            f"txnAppId {application} belongs to {by}, so {wanted} cannot use it: their versions are counted"
            " separately; use another txnAppId"
        )


class PipelineFailed(Conflict):
    """
    The query of pipeline ``name`` failed for ``reason``; its current batch was not committed.

    :known: The current batch was not committed.
    :retry: decide
    :advice: Remove the ``reason``, then run the pipeline again; it continues after the last committed batch.
    """

    code = "SPARK-210"

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(f"pipeline {name} failed: {reason}")


class JobFailed(Conflict):
    """
    A task of a job failed; the message is its last line of output. Nothing of the job is visible.

    :known: Nothing of the job is visible.
    :retry: decide
    :advice: Remove the reason in the text, then run the job again.
    """

    code = "SPARK-211"


class ExportConflict(Conflict):
    """
    Another export to ``folder`` finished first; nothing of this one is visible.

    :known: Nothing of this export is visible.
    :retry: call
    :advice: Run the export again to export the remaining messages.
    """

    code = "SPARK-212"

    def __init__(self, folder: str, number: int) -> None:
        self.folder = folder
        self.number = number
        super().__init__(
            f"another export to {folder} finished as number {number} first; nothing of this export is visible; run it"
            " again to export the remaining messages"
        )
