"""Round-robin order of consumers."""

from __future__ import annotations

from collections.abc import Iterable

from txnframework_dispatchers._permits import Attached


class Turns:
    """Selects in turn among the consumers that have permits."""

    def __init__(self) -> None:
        self._last = 0

    def next(self, consumers: Iterable[Attached]) -> Attached | None:
        """Return the consumer with permits whose id follows the last selected one, cyclically, or None."""
        chosen = min((one for one in consumers if one.permits > 0), key=self._turn, default=None)
        if chosen is not None:
            self._last = chosen.info.consumer_id
        return chosen

    def _turn(self, attached: Attached) -> tuple[bool, int]:
        consumer_id = attached.info.consumer_id
        return consumer_id <= self._last, consumer_id
