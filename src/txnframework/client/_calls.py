"""Base class for client operations: retries, and errors that name a closed client or a deleted topic."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar

from txnframework.broker import Host, Topics
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
    Close; where that fails while ``error`` is on its way, ``error`` goes on, with a note of it.

    A store that is away, for instance, makes both fail, and the first one says what the program was doing. What could
    not be let go of runs out with its session.
    """
    try:
        await close()
    except TxnFrameworkError as failed:
        if error is None:
            raise
        error.add_note(f"closing failed as well: {failed}")


def require_open(host: Host) -> None:
    """Refuse whoever goes on after the client was closed."""
    if host.closed:
        raise client_closed(host)


def client_closed(host: Host) -> Closed:
    """Return what is said, whatever it was that noticed it, about a client that was closed."""
    return Closed(
        f"the client of {host.stores} was closed when its 'with' block ended, and with it all that it made: "
        "open another"
    )


async def require_topics(host: Host, layouts: Iterable[Layout]) -> None:
    """
    Look whether the topics are there that had these layouts.

    :raises TopicNotFound: one was deleted; there may be another one of its name.
    """
    for layout in layouts:
        segment = str(layout.name_of(next(iter(layout.segments))))
        if await host.topics.deleting.is_deleted(segment, layout.life):
            raise TopicNotFound(str(layout.topic), deleted=True)


@asynccontextmanager
async def naming_deletion(host: Host, layouts: Callable[[], Iterable[Layout]]) -> AsyncIterator[None]:
    """
    Raise TopicNotFound for what is raised within because one of the topics was deleted.

    What is left of a topic fails in many ways while it is removed: its ledger, its cursors and its dispatch go one by
    one. Where the store cannot tell, the error goes on as it is.
    """
    try:
        yield
    except (NotFound, Closed, Conflict) as error:
        if isinstance(error, TopicNotFound) or host.closing:
            raise
        try:
            await require_topics(host, layouts())
        except TopicNotFound as deleted:
            raise deleted from error
        except TxnFrameworkError:
            pass
        raise


T = TypeVar("T")


def backoff_of(environment: Environment, bounds: ClientSection) -> Backoff:
    """Return the waits between retries that the configuration asks for."""
    return Backoff(environment, bounds.retry_delay_ms, bounds.retry_delay_ms_max)


class Retrying:
    """For operations that may be repeated after Unavailable and after OutcomeUnknown."""

    def __init__(self, environment: Environment, bounds: ClientSection) -> None:
        self._backoff = backoff_of(environment, bounds)
        self._bounds = bounds

    async def run(self, operation: Callable[[], Awaitable[T]], again: Callable[[Exception], None] | None = None) -> T:
        """
        Return what ``operation`` returns; ``again`` is told of each error after which it is tried again.

        :raises OutcomeUnknown: one of the attempts may have been applied, and no later one could tell; whatever else a
            later one raises is its cause.
        :raises InvalidTransactionState: after an unknown outcome too, as it states the transaction's outcome.
        :raises EndTransactionTimeout: likewise; whoever ended it has tried again for as long as is configured.
        :raises LedgerSealed: likewise, as what is sealed has to be followed; ``again`` was told of what is unknown.
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
"""How callers name a topic or a segment: by a text, or by what ``Layout.name_of`` returns."""


class Calls:
    """A host, and how calls to it are tried again; the parts of ``Client`` are made of it."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._retrying = Retrying(host.environment, host.config.client)

    @property
    def host(self) -> Host:
        """
        What this client stands on, for programs that embed more of it.

        :raises Closed: the client was closed.
        """
        require_open(self._host)
        return self._host

    @property
    def topics(self) -> Topics:
        """The topics and their layouts."""
        return self.host.topics

    async def _finish(self, topic: TopicName, work: Callable[[], Awaitable[T]]) -> T:
        """Do something to a topic, to its end, though the caller be cancelled; after what was cancelled before it."""
        return await self.host.steps.finish(work, (str(topic),))

    @staticmethod
    def _topic(given: Name) -> TopicName:
        name = name_from(given)
        if isinstance(name, SegmentName):
            raise InvalidInput(f"{name} is a segment; name its topic, {name.topic}")
        return name


def name_from(given: Name) -> TopicName | SegmentName:
    """
    Return the topic or segment that a caller named.

    :raises InvalidName: there can be none of that name.
    """
    return given if isinstance(given, TopicName | SegmentName) else parse_name(given)


def check_subscription(name: object, start: object = "earliest") -> None:
    """Refuse a name that no subscription can have, or an invalid start."""
    check_known_name(name, SUBSCRIPTION_NAME)
    if start not in ("earliest", "latest"):
        raise InvalidInput(f"a subscription starts at 'earliest' or 'latest', not at {excerpt(start)}")
