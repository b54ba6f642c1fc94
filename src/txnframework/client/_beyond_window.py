"""Messages that were stored although an earlier copy may no longer be recognised."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from txnframework.broker import OpenSegment
from txnframework.errors import TxnFrameworkError
from txnframework.model.ledger import ProducerSequence, Remembered

if TYPE_CHECKING:
    from txnframework.metrics import Metrics

_LOG = logging.getLogger(__name__)


class BeyondWindow:
    """
    Counts one producer's messages below the deduplication window of a segment, and logs the first one.

    A ledger recognises copies of a producer's latest sequences only. An older sequence is stored, because refusing it
    could lose a message that arrives late for the first time. So it may be stored twice.
    """

    def __init__(self, metrics: Metrics | None, producer: str) -> None:
        self._producer = producer
        self._was_logged = False
        self._count = None
        if metrics is not None:
            self._count = metrics.counter(
                "txnframework_sends_beyond_window_total",
                "Messages that were stored below the deduplication window, where an earlier copy may be forgotten.",
            )

    async def look(self, opened: OpenSegment, stored: ProducerSequence, highest: int | None) -> int | None:
        """
        Count newly stored sequences if they are below the window, and return the highest stored sequence.

        A sequence above ``highest``, the result of the previous call, cannot be below the window. The exception is
        another process that sends under the same name at the same time, which is not detected here. Errors of the store
        are ignored, because this is only a metric.
        """
        if highest is not None and stored.first > highest:
            return stored.last
        try:
            known = await opened.ledger.remembered(self._producer, stored.last)
        except TxnFrameworkError:
            return highest
        if known.above >= known.window:
            self._tell(opened.name, stored, known)
        return max(stored.last, stored.last if known.highest is None else known.highest)

    def _tell(self, segment: str, stored: ProducerSequence, known: Remembered) -> None:
        messages = stored.last - stored.first + 1
        if self._count is not None:
            self._count.inc(messages)
        if not self._was_logged:
            self._was_logged = True
            _LOG.warning(
                "producer %s stored message %d in %s behind %d later ones: if it was stored before, it is there twice"
                " now, because only the last %d are recognised (deduplication_window_sequences of the ledger store)",
                self._producer,
                stored.first,
                segment,
                known.above,
                known.window,
            )
