"""Errors that only this plugin raises; a caller can branch on each class."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from txnframework.errors import Conflict, Corrupt, InvalidInput, NotFound, TxnFrameworkError, Unavailable


class InvalidOption(InvalidInput):
    """The value of ``option`` of a load or a save is invalid."""

    def __init__(self, option: str, reason: str) -> None:
        self.option = option
        self.reason = reason
        super().__init__(f"option {option}: {reason}")


class UnknownOption(InvalidInput):
    """``option`` is not one of ``known``; ``nearest`` is the most similar known name, if any."""

    def __init__(self, option: str, known: Iterable[str], where: str) -> None:
        self.option = option
        self.known = tuple(sorted(known))
        by_lower = {name.lower(): name for name in self.known}
        close = get_close_matches(option.lower(), by_lower, n=1)
        self.nearest = by_lower[close[0]] if close else None
        hint = f"did you mean {self.nearest}?" if self.nearest else f"known options: {', '.join(self.known)}"
        super().__init__(f"{where} has no option {option}: {hint}")


class Unsupported(InvalidInput):
    """Spark requested something that this format does not support; the message names an alternative."""


class JavaUnusable(InvalidInput):
    """No Java that Spark can run on is installed; ``found`` is the version that was found, if any."""

    def __init__(self, reason: str, found: int | None = None) -> None:
        self.found = found
        super().__init__(reason)


class CorruptOffset(Corrupt):
    """An offset in the checkpoint is not an offset of this format, or was written by a newer release."""


class DataLost(Conflict):
    """Messages of ``segment`` between ``after`` and ``first`` were trimmed before this query read them."""

    def __init__(self, segment: str, after: str, first: str) -> None:
        self.segment = segment
        self.after = after
        self.first = first
        super().__init__(
            f"messages of {segment} after {after} were trimmed before they were read (the first remaining one is after"
            f" {first}); set failOnDataLoss=false to skip them, or delete the checkpoint"
        )


class TopicLost(Conflict):
    """``topic`` was deleted after the query read a part of it; ``again``: a topic of that name was created since."""

    def __init__(self, topic: str, *, again: bool = False) -> None:
        self.topic = topic
        self.again = again
        since = " and created again" if again else ""
        super().__init__(
            f"topic {topic} was deleted{since} before this query had read all of it; set failOnDataLoss=false to skip"
            " the deleted messages, or delete the checkpoint"
        )


class Diverged(Conflict):
    """Checkpoint and subscription contradict each other, so a commit would lose or repeat messages."""

    def __init__(self, topic: str, subscription: str, reason: str) -> None:
        self.topic = topic
        self.subscription = subscription
        super().__init__(f"the checkpoint and subscription {subscription} of {topic} disagree: {reason}")


class MixedBatch(Conflict):
    """Some sources of the batch were committed before and others not, so it can be neither committed nor skipped."""


class NotJudgeable(Conflict):
    """A new query uses an old application id, and it is unknown whether this batch was committed before."""


class StateLost(Conflict):
    """The checkpointed state of a query does not belong to the last batch that ``application`` committed."""

    def __init__(self, application: str, reason: str) -> None:
        self.application = application
        super().__init__(
            f"the checkpoint does not belong to the last batch that application {application} committed: {reason};"
            " restore the right checkpoint, or set txnAppReset=true to continue without the state"
        )


class NotAcknowledged(Conflict):
    """``batches`` of a query with ``groupId`` were written by a sink that did not acknowledge them."""

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
    """The batch was aborted instead of committed; restarting the query runs it again."""


class PauseOrphaned(Unavailable):
    """The process waited at a pause point and no process is left to release it."""


class TopicMissing(NotFound):
    """Rows name ``topic``, which does not exist."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"topic {topic} does not exist; create it first: txnframework topic create {topic}")


class ApplicationMixed(Conflict):
    """``application`` is used by both streams and batch jobs, whose versions are counted separately."""

    def __init__(self, application: str, by: str, wanted: str) -> None:
        self.application = application
        super().__init__(
            f"txnAppId {application} belongs to {by}, so {wanted} cannot use it: their versions are counted"
            " separately; use another txnAppId"
        )


_CLASS = re.compile(r"^(?:txnframework\w*(?:\.\w+)+): (?=.)")
"""The class name of one of our own errors before its message, as in a traceback."""


def extract_reason(text: str) -> str:
    """Return the line of an error's text that gives the reason: the line after the last frame of a Python traceback."""
    lines = text.splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    # Spark appends its plan and the JVM's stack.
    said = (line.strip() for line in lines[frames[-1] + 1 if frames else 0 :] if line.strip() and not line[0].isspace())
    return next(said, "")


def describe_error(error: BaseException) -> str:
    """Return the reason for users: the message alone for our own errors, else the message with Spark's error class."""
    reason = extract_reason(str(error)) or type(error).__name__
    return _CLASS.sub("", reason).rstrip(";")


class PipelineFailed(Conflict):
    """The query of pipeline ``name`` failed for ``reason``; its current batch was not committed."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(f"pipeline {name} failed: {reason}")


class JobFailed(Conflict):
    """A task of a job failed; the message is its last line of output. Nothing of the job is visible."""


class ExportConflict(Conflict):
    """Another export to ``folder`` finished first; nothing of this one is visible."""

    def __init__(self, folder: str, number: int) -> None:
        self.folder = folder
        self.number = number
        super().__init__(
            f"another export to {folder} finished as number {number} first; nothing of this export is visible; run it"
            " again to export the remaining messages"
        )


class UnusableFolder(InvalidInput):
    """``folder`` cannot be used for exports."""

    def __init__(self, folder: str, reason: str) -> None:
        self.folder = folder
        super().__init__(f"{folder} {reason}")


class StoresNotConfigured(InvalidInput):
    """A job on a cluster has no configuration file that it could send to its tasks."""

    def __init__(self, master: str) -> None:
        self.master = master
        super().__init__(
            f"tasks on {master} need the location of the stores: set --config to a configuration whose stores all"
            " machines can reach"
        )


class UnusableInput(InvalidInput):
    """The input file is invalid; ``line`` is the number of the invalid line, None if the whole file is."""

    def __init__(self, path: Path, reason: str, line: int | None = None) -> None:
        self.path = path
        self.reason = reason
        self.line = line
        where = f"{path}, line {line}" if line is not None else str(path)
        super().__init__(f"{where}: {reason}")


class UnusableDirectory(InvalidInput):
    """``path`` cannot be the demo's working directory."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        super().__init__(f"the demo cannot use {path}: {reason}")


class UnusableStore(InvalidInput):
    """The URL given as ``option`` does not name a store that can be opened."""

    def __init__(self, option: str, reason: str) -> None:
        self.option = option
        super().__init__(f"{option}: {reason}")


class UnsharedStore(InvalidInput):
    """The store at ``option`` cannot be shared by several processes, which the demo needs."""

    def __init__(self, option: str, scheme: str) -> None:
        self.option = option
        super().__init__(
            f"{option}: store {scheme!r} exists in one process only, but the demo runs several processes; use the URL"
            " of a store that processes can share, or leave the option out to use a SQLite file"
        )


class DemoFailed(TxnFrameworkError):
    """The demo could not be completed; the outputs were not judged."""


class DemoPipelineFailed(DemoFailed):
    """The pipeline's process ended with ``status`` although it was not killed."""

    def __init__(self, status: int, last_words: str, log: Path) -> None:
        self.status = status
        self.log = log
        super().__init__(f"the pipeline failed with exit status {status}: {last_words} (its log is {log})")
