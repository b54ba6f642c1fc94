"""How long deciding a transaction takes, and how it ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from txnframework.broker._measuring.passing import Passing
from txnframework.broker._measuring.results import OK, REJECT, header_cas, result_of
from txnframework.interfaces import ITransactionCoordinator
from txnframework.model.transactions import End, Transaction

if TYPE_CHECKING:
    from txnframework.metrics import Metrics


class MeasuredCoordinator(Passing):
    """Times endings."""

    _behind: ITransactionCoordinator

    def __init__(self, behind: ITransactionCoordinator, metrics: Metrics) -> None:
        super().__init__(behind)
        self._ended = metrics.histogram(
            "txnframework_end_seconds",
            "Time until a transaction was decided, by result: ok, reject (it ended otherwise, is not known or is"
            " another's), unknown (the reply was lost), failed.",
            ("family", "action", "result"),
        )
        self._decisions = header_cas(metrics)
        self._family = behind.family

    async def end(self, request: End) -> Transaction:
        """Decide a transaction, timed."""
        clock = asyncio.get_running_loop().time
        began_s = clock()
        result = OK
        try:
            return await self._behind.end(request)
        except BaseException as error:
            result = result_of(error, REJECT)
            if result == REJECT:
                self._decisions.labels(REJECT).inc()
            raise
        finally:
            self._ended.labels(self._family, request.action.value, result).observe(clock() - began_s)


def measured_coordinator(coordinator: ITransactionCoordinator, metrics: Metrics | None) -> ITransactionCoordinator:
    """Return ``coordinator``, measured where there is a ``Metrics``."""
    return coordinator if metrics is None else ITransactionCoordinator(MeasuredCoordinator(coordinator, metrics))
