"""Messages to send: the calls that wait for them, and the pure decisions about shared entries."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from txnframework.client._messages import MessageID
from txnframework.errors import OutcomeUnknown
from txnframework.model.entries import EntryMessage
from txnframework.model.ids import Branch
from txnframework.model.key_hashes import key_hash, keyless_hash
from txnframework.model.ledger import ProducerSequence


class SendQuota:
    """
    Limits the messages that a producer has in flight.

    ``turn`` is a lock that serializes the calls of ``send`` in order. Each call holds it until all its messages have
    their quota.
    """

    def __init__(self, messages_max: int) -> None:
        self._messages_max = messages_max
        self._free = messages_max
        self.turn = asyncio.Lock()
        self._freed = asyncio.Event()

    async def take(self, wanted: int) -> int:
        """
        Wait until at least one message may be sent; return how many may, at most ``wanted``. The caller holds ``turn``.
        """
        while not self._free:
            self._freed.clear()
            await self._freed.wait()
        taken = min(wanted, self._free)
        self._free -= taken
        return taken

    async def all_given_back(self) -> None:
        """Wait until no message is in flight."""
        while self._free < self._messages_max:
            self._freed.clear()
            await self._freed.wait()

    def give(self, messages: int) -> None:
        """Return the quota of completed messages."""
        self._free += messages
        self._freed.set()


class SendCall:
    """
    The messages of one call, numbered from 0, and the outcome of each.

    After ``give_up``, outcomes are ignored, and messages that have not been sent by then are skipped.
    """

    def __init__(self, quota: SendQuota, messages: int) -> None:
        self._quota = quota
        self._outcomes: list[MessageID | Exception | None] = [None] * messages
        self._in_flight = 0
        self._left = messages
        # Made by ``ended``.
        self._all_ended: asyncio.Future[tuple[MessageID, ...]] | None = None
        self._given_up = False

    async def acquire(self, wanted: int) -> int:
        """
        Wait until some of the next ``wanted`` messages may be sent; return how many. The caller holds the quota's turn.
        """
        taken = await self._quota.take(wanted)
        self._in_flight += taken
        return taken

    def end(self, at: int, outcome: MessageID | Exception) -> None:
        """Record the outcome of message ``at``; later outcomes of the same message are ignored."""
        if self._given_up or self._outcomes[at] is not None:
            return
        self._outcomes[at] = outcome
        self._left -= 1
        self._in_flight -= 1
        self._quota.give(1)
        if not self._left and self._all_ended is not None and not self._all_ended.done():
            self._report(self._all_ended)

    def is_over(self, at: int) -> bool:
        """Whether no caller waits for message ``at`` any more."""
        return self._given_up or self._outcomes[at] is not None

    def outcome(self, at: int) -> MessageID | Exception | None:
        """Return the id of message ``at``, or the error of its send; None if it is still in flight."""
        return self._outcomes[at]

    def ended(self) -> asyncio.Future[tuple[MessageID, ...]]:
        """
        Return a future of the ids of all messages, or of the error of the first one that failed.

        One caller waits, once.
        """
        self._all_ended = asyncio.get_running_loop().create_future()
        if not self._left:
            self._report(self._all_ended)
        return self._all_ended

    def _report(self, all_ended: asyncio.Future[tuple[MessageID, ...]]) -> None:
        failed = next((one for one in self._outcomes if isinstance(one, Exception)), None)
        if failed is not None:
            all_ended.set_exception(failed)
        else:
            all_ended.set_result(tuple([one for one in self._outcomes if isinstance(one, MessageID)]))

    def give_up(self) -> None:
        """
        Release the quota of a cancelled call, whose messages in flight may be stored or not; otherwise do nothing.
        """
        self._given_up = True
        if self._in_flight:
            self._quota.give(self._in_flight)
            self._in_flight = 0


MESSAGE_OVERHEAD_BYTES = 64
"""An upper estimate of the space that a message takes in an entry in addition to its own bytes."""


class OutgoingMessage(msgspec.Struct, eq=False):
    """
    A message to send, which is message ``at`` of the call ``sending``.

    * ``chosen``: the caller chose the sequence id, so another process may have sent the message before.
    * ``uncertain``: an earlier attempt had an unknown outcome.
    * ``order``: the position of the message in the producer's sending order.
    * ``principal``: the principal of the branch; all messages of a branch have the same one.
    * ``has_migrated``: the topic has migrated to another family since the message was first routed.
    """

    message: EntryMessage
    branch: Branch | None
    chosen: bool
    sending: SendCall
    at: int = 0
    order: int = 0
    uncertain: bool = False
    principal: str = ""
    has_migrated: bool = False

    @property
    def sequence_id(self) -> int:
        """The message's number in its producer."""
        return self.message.sequence_id

    @property
    def is_over(self) -> bool:
        """Whether no caller waits for the message any more."""
        return self.sending.is_over(self.at)

    def succeed(self, message_id: MessageID) -> None:
        """Report the message's id to the waiting call."""
        self.sending.end(self.at, message_id)

    def fail(self, error: Exception) -> None:
        """Report an error to the waiting call; OutcomeUnknown if the message may be stored all the same."""
        if self.uncertain and not isinstance(error, OutcomeUnknown):
            # The error belongs to a later attempt, and does not say whether the earlier attempt stored the message.
            unknown = OutcomeUnknown(f"an earlier attempt may have stored the message; trying again failed: {error}")
            unknown.__cause__ = error
            error = unknown
        self.sending.end(self.at, error)


def hash_of(message: EntryMessage, producer: str) -> int:
    """Return the hash that routes a message: of its key, else of producer and sequence id, so that retries match."""
    if message.key is None:
        return keyless_hash(producer, message.sequence_id)
    return key_hash(message.key)


def size_of(message: EntryMessage) -> int:
    """Return the approximate size of a message in an entry, in bytes."""
    size = len(message.value or b"") + len(message.key or b"") + MESSAGE_OVERHEAD_BYTES
    if message.headers:
        size += sum(len(name.encode()) + len(value) for name, value in message.headers)
    return size


def take_batch(waiting: deque[OutgoingMessage], messages_max: int, bytes_max: int) -> list[OutgoingMessage]:
    """
    Remove and return the messages for the next entry: consecutive, of one branch, with increasing sequence ids.

    An entry claims every sequence id between its first and its last one. Ids that the producer counted may leave gaps,
    because the missing ids were sent to other segments. Ids that the caller chose must be consecutive, because the
    message for a gap may still be sent.
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


def _may_follow(last: OutgoingMessage, following: OutgoingMessage) -> bool:
    before, number = last.message.sequence_id, following.message.sequence_id
    return number == before + 1 if last.chosen or following.chosen else number > before


def claimed_sequences(batch: Sequence[OutgoingMessage], producer: str) -> ProducerSequence:
    """Return the sequence ids that an entry of this batch claims."""
    return ProducerSequence(producer, batch[0].message.sequence_id, batch[-1].message.sequence_id)


def divide(
    batch: Iterable[OutgoingMessage], stored: ProducerSequence
) -> tuple[list[OutgoingMessage], list[OutgoingMessage]]:
    """Divide a batch into the messages that a stored copy claims, and the others, which are still to be sent."""
    earlier: list[OutgoingMessage] = []
    rest: list[OutgoingMessage] = []
    for one in batch:
        (earlier if stored.first <= one.sequence_id <= stored.last else rest).append(one)
    return earlier, rest


def supposed_indexes(stored: ProducerSequence, batch: Sequence[OutgoingMessage], producer: str) -> dict[int, int]:
    """
    Return the index of each sequence id in an entry that cannot be read, inferred from the ids that it claims.

    If the claim equals the batch's claim, the entry is the same batch. Any other entry has ids that the caller chose,
    which are consecutive: see ``take_batch``.
    """
    if stored == claimed_sequences(batch, producer):
        return {one.sequence_id: index for index, one in enumerate(batch)}
    return {one.sequence_id: one.sequence_id - stored.first for one in batch}
