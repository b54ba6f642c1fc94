"""Base class for client operations: retries, and errors that name a closed client or a deleted topic."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import TypeVar

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
    if (layout.topic, layout.life) in opened.formers:
        raise Unavailable(f"{layout.topic} has just become {opened.topic}")
    raise TopicNotFound(str(layout.topic), deleted=True)


class NamingDeletion:
    """
    Raise TopicNotFound instead of an error that the deletion of one of the topics caused: ``async with``.

    During a deletion, a topic's ledgers, cursors and dispatches are removed one by one, so operations fail in many
    ways. If the store cannot be asked, the original error is raised.
    """

    # Every send passes through here; a generator would take three times as long.
    __slots__ = ("_host", "_layouts")

    def __init__(self, host: Host, layouts: Callable[[], Iterable[Layout]]) -> None:
        self._host = host
        self._layouts = layouts

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, NotFound | Closed | Conflict):
            return
        if isinstance(error, TopicNotFound) or self._host.closing:
            return
        try:
            await require_topics(self._host, self._layouts())
        except TopicNotFound as deleted:
            raise deleted from error
        except TxnFrameworkError:
            return


T = TypeVar("T")


def backoff_of(environment: Environment, bounds: ClientSection) -> Backoff:
    """Return the configured delays between retries."""
    return Backoff(environment, bounds.retry_delay_ms, bounds.retry_delay_ms_max)


class RetryPolicy:
    """Retries operations after Unavailable and OutcomeUnknown."""

    def __init__(self, environment: Environment, bounds: ClientSection) -> None:
        self._backoff = backoff_of(environment, bounds)
        self._bounds = bounds

    async def run(self, operation: Callable[[], Awaitable[T]], again: Callable[[Exception], None] | None = None) -> T:
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
        unknown: OutcomeUnknown | None = None
        for attempt in range(self._bounds.retries_max + 1):
            try:
                return await operation()
            except EndTransactionTimeout:
                raise
            except (Unavailable, OutcomeUnknown) as error:
                if isinstance(error, OutcomeUnknown):
                    unknown = error
                if attempt == self._bounds.retries_max:
                    if unknown is None or unknown is error:
                        raise
                    raise OutcomeUnknown(f"{unknown}; trying again did not tell: {error}") from unknown
                if again is not None:
                    again(error)
            except (InvalidTransactionState, LedgerSealed):
                raise
            except Exception as error:
                if unknown is None:
                    raise
                raise OutcomeUnknown(f"{unknown}; trying again did not tell: {error}") from error
            await self._backoff.pause(attempt + 1)
        raise AssertionError("the last attempt returns or raises")


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
