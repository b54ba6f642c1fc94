"""Messages on their way out: who waits for them, and the pure decisions about which of them share an entry."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from txnframework.client._messages import MessageID
from txnframework.errors import OutcomeUnknown
from txnframework.model.entries import EntryMessage
from txnframework.model.hashing import key_hash, keyless_hash
from txnframework.model.ids import Branch
from txnframework.model.ledger import ProducerSequence


class Room:
    """
    Bounds how many messages a producer has in flight.

    ``turn``: those who want to send have it in the order of their calls, each until all its messages have found room.
    """

    def __init__(self, messages_max: int) -> None:
        self._free = messages_max
        self.turn = asyncio.Lock()
        self._freed = asyncio.Event()

    async def take(self, wanted: int) -> int:
        """Within the turn: wait until there is room for a message; return for how many, at most ``wanted``."""
        while not self._free:
            self._freed.clear()
            await self._freed.wait()
        taken = min(wanted, self._free)
        self._free -= taken
        return taken

    def give(self, messages: int) -> None:
        """So many have come to an end."""
        self._free += messages
        self._freed.set()


class Sending:
    """
    One call's messages, by their numbers from 0, and what became of each.

    Once it was given up nothing of it is told any more, and what of it has not been sent by then is left out.
    """

    def __init__(self, room: Room, messages: int) -> None:
        self._room = room
        self._outcomes: list[MessageID | Exception | None] = [None] * messages
        self._in_flight = 0
        self._left = messages
        self._all_ended = asyncio.Event()
        self._given_up = False

    async def room_for(self, wanted: int) -> int:
        """Wait until some of the next ``wanted`` messages may be sent; return how many. Within the room's turn."""
        taken = await self._room.take(wanted)
        self._in_flight += taken
        return taken

    def end(self, at: int, outcome: MessageID | Exception) -> None:
        """Message ``at`` has come to an end; what it was first told stays."""
        if self._given_up or self._outcomes[at] is not None:
            return
        self._outcomes[at] = outcome
        self._left -= 1
        self._in_flight -= 1
        self._room.give(1)
        if not self._left:
            self._all_ended.set()

    def is_over(self, at: int) -> bool:
        """Whether nobody waits for message ``at`` any more."""
        return self._given_up or self._outcomes[at] is not None

    def outcome(self, at: int) -> MessageID | Exception | None:
        """Return where message ``at`` stands, or why it could not be sent; None: it has not ended."""
        return self._outcomes[at]

    async def ended(self) -> tuple[MessageID, ...]:
        """Wait until every message has come to an end; return where they stand, or raise the first one's error."""
        if self._left:
            await self._all_ended.wait()
        for outcome in self._outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        return tuple(outcome for outcome in self._outcomes if isinstance(outcome, MessageID))

    def give_up(self) -> None:
        """Nobody waits any more: what is in flight may come to stand there or not. Without any, nothing happens."""
        self._given_up = True
        self._room.give(self._in_flight)
        self._in_flight = 0


MESSAGE_OVERHEAD_BYTES = 64
"""What a message takes in an entry besides its own bytes, generously."""


@dataclass(slots=True, eq=False)
class Outgoing:
    """
    A message to be sent, and the call that waits for it, whose message ``at`` it is.

    ``chosen``: the caller chose its sequence id, so it may have been sent before, by another process. ``uncertain``:
    it was sent and nobody knows whether it arrived. ``order`` counts the producer's messages as they were sent.
    ``principal``: on whose behalf it is sent in its branch, which is one writer's.
    """

    message: EntryMessage
    branch: Branch | None
    chosen: bool
    sending: Sending
    at: int = 0
    order: int = 0
    uncertain: bool = False
    principal: str = ""

    @property
    def sequence_id(self) -> int:
        """The producer's number of this message."""
        return self.message.sequence_id

    @property
    def may_stand_elsewhere(self) -> bool:
        """Whether an earlier copy may stand in a segment that this one's segment descends from."""
        return self.chosen or self.uncertain

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.sending.is_over(self.at)

    def succeed(self, message_id: MessageID) -> None:
        """Tell whoever waits where it stands."""
        self.sending.end(self.at, message_id)

    def fail(self, error: Exception) -> None:
        """Tell whoever waits why it could not be sent, or that it may stand there all the same."""
        if self.uncertain and not isinstance(error, OutcomeUnknown):
            # The error is of a later attempt only: it says nothing of the one whose reply was lost.
            unknown = OutcomeUnknown(f"an earlier attempt may have stored the message; trying again failed: {error}")
            unknown.__cause__ = error
            error = unknown
        self.sending.end(self.at, error)


def hash_of(message: EntryMessage, producer: str) -> int:
    """Return the hash value that routes a message: of its key, or of producer and sequence so that a retry meets it."""
    if message.key is None:
        return keyless_hash(producer, message.sequence_id)
    return key_hash(message.key)


def size_of(message: EntryMessage) -> int:
    """Return about how many bytes a message takes in an entry."""
    size = len(message.value or b"") + len(message.key or b"") + MESSAGE_OVERHEAD_BYTES
    if message.headers:
        size += sum(len(name.encode()) + len(value) for name, value in message.headers)
    return size


def take_batch(waiting: deque[Outgoing], messages_max: int, bytes_max: int) -> list[Outgoing]:
    """
    Remove and return the messages that share the next entry: neighbours, of one branch, their sequence ids growing.

    An entry claims every sequence id between its first and its last one. Ids that this producer counted may leave
    gaps: what belongs into them went to other segments. Ids that the caller chose must follow each other, because
    what belongs into a gap may still come.
    """
    last = waiting.popleft()
    batch = [last]
    size = size_of(last.message)
    while waiting and len(batch) < messages_max:
        following = waiting[0]
        size += size_of(following.message)
        if following.branch != last.branch or size > bytes_max or not _may_follow(last, following):
            break
        last = waiting.popleft()
        batch.append(last)
    return batch


def _may_follow(last: Outgoing, following: Outgoing) -> bool:
    before, number = last.message.sequence_id, following.message.sequence_id
    return number == before + 1 if last.chosen or following.chosen else number > before


def claimed(batch: Sequence[Outgoing], producer: str) -> ProducerSequence:
    """Return the sequence ids that an entry of this batch claims."""
    return ProducerSequence(producer, batch[0].message.sequence_id, batch[-1].message.sequence_id)


def divide(batch: Iterable[Outgoing], stored: ProducerSequence) -> tuple[list[Outgoing], list[Outgoing]]:
    """Divide a batch into what an earlier copy claims, and the rest, which is still to be sent."""
    earlier: list[Outgoing] = []
    rest: list[Outgoing] = []
    for one in batch:
        (earlier if stored.first <= one.sequence_id <= stored.last else rest).append(one)
    return earlier, rest


def supposed_indexes(stored: ProducerSequence, batch: Sequence[Outgoing], producer: str) -> dict[int, int]:
    """
    Return where in an entry that cannot be read each sequence id stands, by the ids that it claims.

    The same claim is that of the same batch. Any other entry is one of ids that the caller chose, which follow each
    other without gaps: see ``take_batch``.
    """
    if stored == claimed(batch, producer):
        return {one.sequence_id: index for index, one in enumerate(batch)}
    return {one.sequence_id: one.sequence_id - stored.first for one in batch}
