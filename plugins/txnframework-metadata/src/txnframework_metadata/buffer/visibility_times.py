"""The time from the commit of a transaction until its messages are announced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txnframework.environment import Environment
from txnframework.model.ids import TxnID
from txnframework.model.transactions import State
from txnframework_metadata.buffer.segment_view import SegmentView

if TYPE_CHECKING:
    from txnframework.instruments import Instruments


class VisibilityTimes:
    """
    Measures the delay of each transaction that a reading of the segment finds committed for the first time.

    The last ``transactions_max`` such transactions are remembered. Transactions found by the first reading are not
    measured, because no caller waited for them here. The commit time is taken from the clock of the host that
    committed.
    """

    def __init__(
        self, view: SegmentView, topic: str, metrics: Instruments, environment: Environment, transactions_max: int
    ) -> None:
        self._view = view
        self._environment = environment
        self._transactions_max = transactions_max
        self._times = metrics.histogram(
            "txnframework_commit_to_visible_seconds",
            "Time from the commit of a transaction until this process may read its messages in a segment.",
            ("topic",),
        ).labels(topic)
        # In the order of discovery.
        self._known: dict[TxnID, None] | None = None
        view.listen(self._look)

    def _look(self) -> None:
        reading = self._view.latest
        if reading is None:
            return
        is_first, self._known = self._known is None, self._known or {}
        for txn_id, header in reading.headers.items():
            if header is None or header.state is not State.COMMITTED or header.finalized_ms is None:
                continue
            if txn_id not in self._known:
                self._known[txn_id] = None
                if not is_first:
                    self._times.observe(max(0, self._environment.now_ms() - header.finalized_ms) / 1000)
        while len(self._known) > self._transactions_max:
            del self._known[next(iter(self._known))]
