"""How long after its commit a transaction's messages may be read in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txnframework.environment import Environment
from txnframework.model.ids import TxnID
from txnframework.model.transactions import State
from txnframework_metadata.buffer.segment_view import SegmentView

if TYPE_CHECKING:
    from txnframework.metrics import Metrics


class VisibilityTimes:
    """
    Looks at each reading of a segment; what it finds committed for the first time was waited for.

    What stood before the first reading is left out: nobody waited for it here. The commit's time is that of the clock
    of whichever host committed.
    """

    def __init__(self, view: SegmentView, metrics: Metrics, environment: Environment) -> None:
        self._view = view
        self._environment = environment
        self._times = metrics.histogram(
            "txnframework_commit_to_visible_seconds",
            "Time from the commit of a transaction until this process may read its messages in a segment.",
        )
        self._known: frozenset[TxnID] | None = None
        view.listen(self._look)

    def _look(self) -> None:
        reading = self._view.latest
        if reading is None:
            return
        committed = {
            txn_id: header.finalized_ms
            for txn_id, header in reading.headers.items()
            if header is not None and header.state is State.COMMITTED and header.finalized_ms is not None
        }
        if self._known is not None:
            for txn_id in committed.keys() - self._known:
                self._times.observe(max(0, self._environment.now_ms() - committed[txn_id]) / 1000)
        self._known = frozenset(committed)
