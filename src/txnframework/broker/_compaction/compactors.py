"""What decides which messages compaction keeps."""

from __future__ import annotations

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
    Decides about the messages of one segment; subclass it, and give ``name`` a value of its own.

    Every message is shown to ``look`` first, in order, then every one to ``keeps``, in the same order: those that an
    earlier compaction kept, then those that came since. The same messages must lead to the same decisions.
    """

    name = ""

    def look(self, message: DecidedMessage) -> None:
        """Take notice of a message, before anything is decided."""

    def keeps(self, message: DecidedMessage) -> bool:
        """Return whether the message stays."""
        raise NotImplementedError


class LatestByKey(Compactor):
    """
    Keeps the last message of each key; an empty one takes its key away. Messages without a key stay.

    It remembers every key of a segment, at most ``keys_max``.
    """

    name = "latest-by-key"

    def __init__(self, keys_max: int = 1_000_000) -> None:
        self._keys_max = keys_max
        self._last: dict[bytes, Position] = {}

    def look(self, message: DecidedMessage) -> None:
        """Note that this is the last message of its key so far."""
        key = message.message.key
        if key is not None:
            self._last[key] = message.position
            if len(self._last) > self._keys_max:
                raise InvalidInput(f"a segment has more than {self._keys_max} keys; compact with a larger keys_max")

    def keeps(self, message: DecidedMessage) -> bool:
        """Return whether no later message has its key."""
        key = message.message.key
        return key is None or (self._last[key] == message.position and len(message.message.value) > 0)
