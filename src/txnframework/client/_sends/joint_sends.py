"""Messages of one producer that are appended in the only step of their transaction."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from txnframework.client._messages import MessageID
from txnframework.client._sends.batches import OutgoingMessage, SendCall, take_batch
from txnframework.config import ClientSection
from txnframework.model.entries import encode_entry
from txnframework.model.ledger import Append
from txnframework.model.positions import Position


@dataclass(frozen=True, slots=True)
class JointEntry:
    """Messages that share an entry, and the entry."""

    messages: list[OutgoingMessage]
    append: Append

    def confirm(self, segment: str, at: Position) -> None:
        """Give the messages their ids."""
        for index, one in enumerate(self.messages):
            one.succeed(MessageID(segment, Position(at.ledger_id, at.entry_id, index)))


@dataclass(frozen=True, slots=True)
class JointSends:
    """
    Routed messages of one producer, which hold its quota until ``close``; by segment, in the order of sending.

    ``life``: the life of the topic by which they were routed.
    """

    producer: str
    life: int
    call: SendCall
    by_segment: dict[str, list[OutgoingMessage]]

    def close(self) -> None:
        """Return the quota; to be called once the step is over, whatever came of it."""
        self.call.give_up()

    def id_of(self, at: int) -> MessageID:
        """Return the id of message ``at``, after it was confirmed."""
        outcome = self.call.outcome(at)
        assert isinstance(outcome, MessageID), "the step was applied, which no message can fail"
        return outcome

    def entries_of(self, routed: list[OutgoingMessage], bounds: ClientSection) -> Iterator[JointEntry]:
        """
        Return the entries that hold messages of one segment, in order.

        They claim no sequences. A claim finds a copy that an earlier attempt has stored, and the step has none: after a
        lost reply, the header of its transaction shows whether it was applied.
        """
        waiting = deque(routed)
        while waiting:
            some = take_batch(waiting, bounds.entry_messages_max, bounds.entry_bytes_max)
            branch = some[0].branch
            data = encode_entry([one.message for one in some], self.producer, branch)
            yield JointEntry(some, Append(data, len(some), branch, principal=some[0].principal))
