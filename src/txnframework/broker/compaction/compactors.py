"""Compactors, which decide which messages are kept."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from txnframework.errors import InvalidInput
from txnframework.model.entries import EntryMessage
from txnframework.model.ids import TxnID
from txnframework.model.positions import Position


@dataclass(frozen=True, slots=True)
class DecidedMessage:
    """A message that counts, at ``position`` of its segment; ``txn_id`` None: it was sent outside transactions."""

    position: Position
    message: EntryMessage
    producer: str
    txn_id: TxnID | None


class Compactor:
    """
    Decides which messages of one segment are kept; subclass it, and give ``name`` a value of its own.

    Every message is passed to ``look`` first, in order, then every message to ``keeps``, in the same order. Messages
    that an earlier compaction kept come first, then the later ones. The same messages must lead to the same decisions.

    A compactor may drop a key together with the null that deletes it. Such a compactor also implements ``deleted`` and
    ``relate``, because after a split the null is in another segment than the message that it deletes.
    """

    name = ""

    def look(self, message: DecidedMessage) -> None:
        """Take notice of a message, before any decision."""

    def deleted(self) -> Set[bytes]:
        """Return the keys whose last message is a null, after every message was passed to ``look``."""
        return frozenset()

    def relate(self, deleted_later: Set[bytes], gone_before: Set[bytes] | None) -> None:
        """
        Take notice of the topic's other segments, after ``look`` and before ``keeps``.

        :param deleted_later: keys that a descendant of this segment deletes.
        :param gone_before: keys of which no earlier segment can return a message any more; None: there is no earlier
            segment.
        """

    def keeps(self, message: DecidedMessage) -> bool:
        """Return whether the message is kept."""
        raise NotImplementedError


class LatestByKey(Compactor):
    """
    Keeps the last message of each key; a null deletes its key. Messages without a key are kept.

    The null itself is kept while an earlier segment can still return an older message of its key. An empty value is an
    ordinary value. The compactor remembers every key of a segment, at most ``keys_max``.
    """

    name = "latest-by-key"

    def __init__(self, keys_max: int = 1_000_000) -> None:
        self._keys_max = keys_max
        self._last: dict[bytes, tuple[Position, bool]] = {}
        self._deleted_later: Set[bytes] = frozenset()
        self._gone_before: Set[bytes] | None = None

    def look(self, message: DecidedMessage) -> None:
        """Note that the message is the last one of its key so far."""
        key = message.message.key
        if key is not None:
            self._last[key] = message.position, message.message.value is None
            if len(self._last) > self._keys_max:
                raise InvalidInput(f"a segment has more than {self._keys_max} keys; compact with a larger keys_max")

    def deleted(self) -> Set[bytes]:
        """Return the keys whose last message is a null."""
        return {key for key, (_, is_null) in self._last.items() if is_null}

    def relate(self, deleted_later: Set[bytes], gone_before: Set[bytes] | None) -> None:
        """Note which keys later segments delete, and which nulls have nothing left to delete."""
        self._deleted_later, self._gone_before = deleted_later, gone_before

    def keeps(self, message: DecidedMessage) -> bool:
        """Return whether no later message has the key, and, for a null, whether it still deletes something."""
        key = message.message.key
        if key is None:
            return True
        position, is_null = self._last[key]
        if position != message.position or key in self._deleted_later:
            return False
        return not is_null or (self._gone_before is not None and key not in self._gone_before)
