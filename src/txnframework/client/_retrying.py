"""Trying again, a bounded number of times, what may be tried again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from txnframework.config import ClientSection
from txnframework.environment import Environment
from txnframework.errors import (
    EndTransactionTimeout,
    InvalidTransactionState,
    LedgerSealed,
    OutcomeUnknown,
    Unavailable,
)
from txnframework.runtime.backoff import Backoff

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
