"""What only this plugin raises; every class is one thing that a caller can branch on."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from txnframework.errors import Conflict, Corrupt, InvalidInput, NotFound, Unavailable


class InvalidOption(InvalidInput):
    """The value of ``option`` of a load or a save cannot be used."""

    def __init__(self, option: str, reason: str) -> None:
        self.option = option
        self.reason = reason
        super().__init__(f"option {option}: {reason}")


class UnknownOption(InvalidInput):
    """``option`` is not one of ``known``; the nearest of them is ``nearest``, if there is one."""

    def __init__(self, option: str, known: Iterable[str], where: str) -> None:
        self.option = option
        self.known = tuple(sorted(known))
        by_lower = {name.lower(): name for name in self.known}
        close = get_close_matches(option.lower(), by_lower, n=1)
        self.nearest = by_lower[close[0]] if close else None
        hint = f"did you mean {self.nearest}?" if self.nearest else f"there are {', '.join(self.known)}"
        super().__init__(f"{where} has no option {option}: {hint}")


class Unsupported(InvalidInput):
    """Spark asked for something that this format does not do; the text says what to do instead."""


class JavaUnusable(InvalidInput):
    """There is no Java that Spark can run on; ``found`` is the version that is there, if any."""

    def __init__(self, reason: str, found: int | None = None) -> None:
        self.found = found
        super().__init__(reason)


class CorruptOffset(Corrupt):
    """An offset in the checkpoint is not one of this format, or one of a newer release."""


class DataLost(Conflict):
    """Messages between ``after`` and ``first`` of ``segment`` are gone before this query has read them."""

    def __init__(self, segment: str, after: str, first: str) -> None:
        self.segment = segment
        self.after = after
        self.first = first
        super().__init__(
            f"messages of {segment} after {after} were trimmed before they were read (the first one left is after"
            f" {first}); set failOnDataLoss=false to go on without them, or delete the checkpoint"
        )


class TopicLost(Conflict):
    """``topic``, of which the query has read a part, was deleted; ``again``: and one of its name was made since."""

    def __init__(self, topic: str, *, again: bool = False) -> None:
        self.topic = topic
        self.again = again
        since = " and made again" if again else ""
        super().__init__(
            f"topic {topic} was deleted{since} before this query has read all of it; set failOnDataLoss=false to go on"
            " without what is gone, or delete the checkpoint"
        )


class Diverged(Conflict):
    """Checkpoint and subscription do not fit together, so that committing would lose or repeat messages."""

    def __init__(self, topic: str, subscription: str, reason: str) -> None:
        self.topic = topic
        self.subscription = subscription
        super().__init__(f"the checkpoint and subscription {subscription} of {topic} disagree: {reason}")


class MixedBatch(Conflict):
    """Some sources of the batch were processed before and some were not, so it can neither be committed nor dropped."""


class NotJudgeable(Conflict):
    """A new query runs under an old application id and nothing tells whether this batch was committed before."""


class StateLost(Conflict):
    """The state of a stateful query is not that of the last batch that ``application`` committed."""

    def __init__(self, application: str, reason: str) -> None:
        self.application = application
        super().__init__(
            f"the checkpoint of application {application} is not the one that belongs to what it committed: {reason};"
            " restore that checkpoint, or set txnAppReset=true to go on without the state"
        )


class NotAcknowledged(Conflict):
    """``batches`` of a query with ``groupId`` were written by a sink that acknowledged nothing."""

    def __init__(self, topic: str, subscription: str, batches: int) -> None:
        self.topic = topic
        self.subscription = subscription
        self.batches = batches
        super().__init__(
            f"nothing acknowledges what is read of subscription {subscription} of {topic}: write to a txnframework"
            " sink, or call pyspark_txnframework.acknowledge(batch, batch_id) at the end of a foreachBatch function, or"
            " leave groupId out, so that the checkpoint alone decides; allowUnacknowledged=true goes on as it is"
        )


class BatchNotCommitted(Conflict):
    """The batch was aborted instead of committed; restarting the query runs it again."""


class PauseOrphaned(Unavailable):
    """The process waited at a pause point and nobody is left to release it."""


class TopicMissing(NotFound):
    """Rows are to go to ``topic``, which is not there."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"topic {topic} does not exist; create it first: txnframework topic create {topic}")


class ApplicationMixed(Conflict):
    """``application`` is used by streams and by batch jobs, whose batches cannot be told apart by one count."""

    def __init__(self, application: str, by: str, wanted: str) -> None:
        self.application = application
        super().__init__(
            f"txnAppId {application} belongs to {by}, so {wanted} cannot use it: their versions are counted apart;"
            " give it a txnAppId of its own"
        )
