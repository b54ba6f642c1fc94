"""Base class for client operations: retries, and errors that name a closed client or a deleted topic."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar, TypeVarTuple

from txnframework.broker import Host, OpenSegment, Topics
from txnframework.config import ClientSection
from txnframework.environment import Environment
from txnframework.errors import (
    Closed,
    Conflict,
    EndTransactionTimeout,
    InvalidInput,
    InvalidTransactionState,
    LedgerSealed,
    NotFound,
    OutcomeUnknown,
    TopicNotFound,
    TxnFrameworkError,
    Unavailable,
    excerpt,
)
from txnframework.model.layout import Layout
from txnframework.model.names import SegmentName, TopicName, check_known_name, parse_name
from txnframework.runtime.backoff import Backoff


async def close_after(error: BaseException | None, close: Callable[[], Awaitable[None]]) -> None:
    """
    Close, without masking the active exception ``error``.

    If closing fails too, ``error`` gets a note, and the caller raises ``error``. An unavailable store makes both fail,
    and the first error shows the failed operation. Without ``error``, the failure of closing is raised. Resources that
    could not be released end with their session.
    """
    try:
        await close()
    except TxnFrameworkError as failed:
        if error is None:
            raise
        error.add_note(f"closing failed as well: {failed}")


def require_open(host: Host) -> None:
    """Raise Closed if the client was closed."""
    if host.closed:
        raise client_closed(host)


def client_closed(host: Host) -> Closed:
    """Return the error for all uses of a closed client."""
    return Closed(
        f"the client of {host.stores} was closed when its 'with' block ended, and with it all that it made: "
        "open another"
    )


async def require_topics(host: Host, layouts: Iterable[Layout]) -> None:
    """
    Check that the topics of these layouts still exist.

    :raises TopicNotFound: a topic was deleted; another topic may exist under its name.
    """
    for layout in layouts:
        segment = str(layout.name_of(next(iter(layout.segments))))
        if await host.topics.deletion.is_deleted(segment, layout.life):
            raise TopicNotFound(str(layout.topic), deleted=True)


async def open_segment(host: Host, layout: Layout, segment_id: int) -> OpenSegment:
    """
    Return a segment of the topic of a layout.

    :raises TopicNotFound: the topic was deleted; another topic may exist under its name.
    :raises Unavailable: the topic has migrated since the layout was read; read it again.
    """
    opened = await host.segment(str(layout.name_of(segment_id)), layout.life)
    if opened.is_of(layout.life):
        return opened
    if opened.origin is not None and (opened.origin.topic, opened.origin.life) == (layout.topic, layout.life):
        raise Unavailable(f"{layout.topic} has just become {opened.topic}")
    raise TopicNotFound(str(layout.topic), deleted=True)


DELETION_ERRORS = (NotFound, Closed, Conflict)
"""The errors of operations that meet the deletion of a topic; see ``raise_if_deleted``."""


async def raise_if_deleted(host: Host, layouts: Iterable[Layout], error: TxnFrameworkError) -> None:
    """
    Raise TopicNotFound if the deletion of one of the topics caused ``error``, which is one of DELETION_ERRORS.

    During a deletion, a topic's ledgers, cursors and dispatches are removed one by one, so operations fail in many
    ways. If the store cannot be asked, nothing is raised, and the caller raises the original error.
    """
    if isinstance(error, TopicNotFound) or host.closing:
        return
    try:
        await require_topics(host, layouts)
    except TopicNotFound as deleted:
        raise deleted from error
    except TxnFrameworkError:
        return


@asynccontextmanager
async def naming_deletion(host: Host, layouts: Callable[[], Iterable[Layout]]) -> AsyncIterator[None]:
    """Raise TopicNotFound instead of an error that the deletion of one of the topics caused."""
    try:
        yield
    except DELETION_ERRORS as error:
        await raise_if_deleted(host, layouts(), error)
        raise


T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def backoff_of(environment: Environment, bounds: ClientSection) -> Backoff:
    """Return the configured delays between retries."""
    return Backoff(environment, bounds.retry_delay_ms, bounds.retry_delay_ms_max)


class RetryPolicy:
    """Retries operations after Unavailable and OutcomeUnknown."""

    def __init__(self, environment: Environment, bounds: ClientSection) -> None:
        self._backoff = backoff_of(environment, bounds)
        self._retries_max = bounds.retries_max

    async def run(
        self, operation: Callable[[*Ts], Awaitable[T]], *args: *Ts, again: Callable[[Exception], None] | None = None
    ) -> T:
        """
        Return the result of ``operation``, with retries; ``again`` is called with each error before a retry.

        :raises OutcomeUnknown: an attempt may have been applied, and no later attempt found out. A different error of
            the last attempt is named in the message.
        :raises InvalidTransactionState: also after an unknown outcome, because the error states the transaction's
            outcome.
        :raises EndTransactionTimeout: also after an unknown outcome, because the coordinator has retried for the
            configured time.
        :raises LedgerSealed: also after an unknown outcome, because the caller must follow to the children; ``again``
            was called with the unknown outcome.
        """
        attempts = self.attempts()
        while True:
            try:
                return await operation(*args)
            except Exception as error:
                attempts.failed(error)
                if again is not None:
                    again(error)
            await attempts.pause()

    def attempts(self) -> RetryAttempts:
        """Return the attempts of one operation, for a caller that repeats it in a loop of its own."""
        return RetryAttempts(self._backoff, self._retries_max)


class RetryAttempts:
    """The attempts of one operation: after a failed one, call ``failed``, then ``pause``, and repeat the operation."""

    __slots__ = ("_backoff", "_failures", "_retries_max", "_unknown")

    def __init__(self, backoff: Backoff, retries_max: int) -> None:
        self._backoff = backoff
        self._retries_max = retries_max
        self._failures = 0
        self._unknown: OutcomeUnknown | None = None

    def failed(self, error: Exception) -> None:
        """Note the error of an attempt, or raise the error of the operation; see ``RetryPolicy.run``."""
        if isinstance(error, EndTransactionTimeout | InvalidTransactionState | LedgerSealed):
            raise error
        if isinstance(error, OutcomeUnknown):
            self._unknown = error
        may_retry = isinstance(error, Unavailable | OutcomeUnknown) and self._failures < self._retries_max
        if not may_retry:
            if self._unknown is None or self._unknown is error:
                raise error
            raise OutcomeUnknown(f"{self._unknown}; trying again did not tell: {error}") from error
        self._failures += 1

    async def pause(self) -> None:
        """Wait before the next attempt."""
        await self._backoff.pause(self._failures)


SUBSCRIPTION_NAME = "subscription name"

Name = str | TopicName | SegmentName
"""The name of a topic or segment: a string, or a result of ``Layout.name_of``."""


class ClientOperations:
    """Base class for client operations: a host, and the retries of calls to it."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._retry = RetryPolicy(host.environment, host.config.client)

    @property
    def host(self) -> Host:
        """
        The host of this client, for programs that embed it.

        :raises Closed: the client was closed.
        """
        require_open(self._host)
        return self._host

    @property
    def topics(self) -> Topics:
        """The topics and their layouts."""
        return self.host.topics

    async def _finish(self, topic: TopicName, work: Callable[[], Awaitable[T]]) -> T:
        """
        Run a step on a topic to its end, even if the caller is cancelled, after earlier abandoned steps on the topic.
        """
        return await self.host.steps.finish(work, (str(topic),))

    @staticmethod
    def _topic(given: Name) -> TopicName:
        name = name_from(given)
        if isinstance(name, SegmentName):
            raise InvalidInput(f"{name} is a segment; name its topic, {name.topic}")
        return name


def name_from(given: Name) -> TopicName | SegmentName:
    """
    Return the topic name or segment name that a caller passed.

    :raises InvalidName: the name is not valid.
    """
    return given if isinstance(given, TopicName | SegmentName) else parse_name(given)


def check_subscription(name: object, start: object = "earliest") -> None:
    """Raise InvalidInput for an invalid subscription name or start."""
    check_known_name(name, SUBSCRIPTION_NAME)
    if start not in ("earliest", "latest"):
        raise InvalidInput(f"a subscription starts at 'earliest' or 'latest', not at {excerpt(start)}")
