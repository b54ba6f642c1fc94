"""A producer's sender for one segment: it sends entries in order, and waits for the confirmation of each."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from txnframework.broker import Host, OpenSegment
from txnframework.client._base import RetryPolicy
from txnframework.client._messages import MessageID
from txnframework.client._sends.batches import (
    OutgoingMessage,
    claimed_sequences,
    divide,
    hash_of,
    supposed_indexes,
    take_batch,
)
from txnframework.config import ClientSection
from txnframework.errors import (
    Closed,
    Conflict,
    LedgerNotFound,
    LedgerSealed,
    NotFound,
    OutcomeUnknown,
    TransactionConflict,
    TransactionDomainMismatch,
    TxnFrameworkError,
)
from txnframework.model.entries import EntryView, encode_entry
from txnframework.model.layout import Segment
from txnframework.model.ledger import Append, ProducerSequence, WindowState
from txnframework.model.positions import Limit, Position
from txnframework.model.reads import Isolation, ReadRequest, Visibility
from txnframework.runtime.tasks import start_task

if TYPE_CHECKING:
    from txnframework.instruments import Instruments

_LOG = logging.getLogger(__name__)


class BeyondWindow:
    """
    Counts one producer's messages below the deduplication window of a segment, and logs the first one.

    A ledger recognises copies of a producer's latest sequences only. An older sequence is stored, because refusing it
    could lose a message that arrives late for the first time. So it may be stored twice.
    """

    def __init__(self, metrics: Instruments | None, topic: str, producer: str) -> None:
        self._producer = producer
        self._was_logged = False
        self._count = None
        if metrics is not None:
            self._count = metrics.counter(
                "txnframework_sends_beyond_window_total",
                "Messages that were stored below the deduplication window, where an earlier copy may be forgotten.",
                ("topic",),
            ).labels(topic)

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

    def _tell(self, segment: str, stored: ProducerSequence, known: WindowState) -> None:
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


ONE_ENTRY = Limit(1)


class Following(NamedTuple):
    """
    How a sender follows its topic.

    ``has_migrated`` returns whether the topic of this life has migrated. ``sealed`` is called when the segment was
    sealed; None: the messages of this sender go to this segment only.
    """

    has_migrated: Callable[[int], Awaitable[bool]]
    sealed: Callable[[], None] | None


class SegmentSender:
    """
    Sends messages to one segment in order.

    If the segment is sealed, the sender stops, keeps the unsent messages, and calls ``following.sealed``. If that is
    None, the waiting sends fail instead. ``ancestors`` are the segments that this one descends from. ``life`` is the
    life of the topic; a segment of the same name in another life is rejected. ``failed`` is called when messages
    outside of transactions were not stored, before the next ones are sent.
    """

    def __init__(
        self,
        host: Host,
        retry: RetryPolicy,
        producer: str,
        segment: str,
        ancestors: tuple[tuple[str, Segment], ...],
        following: Following,
        life: int,
        beyond: BeyondWindow,
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        self.waiting: deque[OutgoingMessage] = deque()
        self.stopped = False
        self.refused: LedgerSealed | LedgerNotFound | None = None
        """The error of the segment when the sender stopped."""
        self._host = host
        self._bounds: ClientSection = host.config.client
        self._retry = retry
        self._producer = producer
        self._segment = segment
        self._ancestors = ancestors
        self._beyond = beyond
        # The highest sequence id chosen by the caller that is stored here; None if unknown.
        self._highest: int | None = None
        self._following = following
        self._life = life
        self._failed = failed
        self._task: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a task is sending."""
        return self._task is not None

    @property
    def has_unsent(self) -> bool:
        """Whether messages wait or are being sent."""
        return self._task is not None or bool(self.waiting)

    def put(self, outgoing: OutgoingMessage) -> None:
        """Send a message after all earlier ones."""
        self.waiting.append(outgoing)
        if self._task is None and not self.stopped:
            self._task = start_task(self._run())
            self._task.add_done_callback(self._ended)

    async def idle(self) -> None:
        """Wait until no task is sending: all messages are sent, or the sender is stopped."""
        while self._task is not None:
            await asyncio.wait({self._task})

    def fail(self, error: Exception) -> None:
        """Fail the waiting messages, and accept new ones again."""
        lost = list(self.waiting)
        self.give_up(error)
        self.stopped = False
        self._report(lost, error)

    def refuse_waiting(self, error: Exception) -> None:
        """Fail the waiting messages that belong to no transaction."""
        waiting, self.waiting = self.waiting, deque()
        for one in waiting:
            if one.branch is None:
                one.fail(error)
            else:
                self.waiting.append(one)

    def give_up(self, error: Exception) -> None:
        """Fail the waiting messages with ``error``."""
        while self.waiting:
            self.waiting.popleft().fail(error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        # A task that is cancelled before its first step never runs, so ``_run`` has not failed the waiting sends.
        if self._task is task:
            self._task = None
            self.give_up(self._not_sent())

    def _not_sent(self) -> Closed:
        return Closed(f"sending to {self._segment} was stopped before the turn of this message came")

    async def _run(self) -> None:
        batch: list[OutgoingMessage] = []
        try:
            if self._bounds.linger_ms:
                await self._host.environment.sleep_until(self._host.environment.now_ms() + self._bounds.linger_ms)
            while self.waiting and not self.stopped:
                batch = take_batch(self.waiting, self._bounds.entry_messages_max, self._bounds.entry_bytes_max)
                try:
                    await self._send(batch)
                except (LedgerSealed, LedgerNotFound) as error:
                    self._refused(batch, error)
                except TransactionDomainMismatch as error:
                    await self._mismatched(batch, error)
                except Exception as error:  # any error of the store goes to the waiting sends
                    _fail(batch, error)
                    self._report(batch, error)
        except BaseException as error:
            # For instance, the event loop ends. Without an error, the waiting sends and ``close`` would never return.
            _fail(batch, OutcomeUnknown(f"sending to {self._segment} was stopped while it was under way: {error!r}"))
            self.give_up(self._not_sent())
            raise
        finally:
            self._task = None

    async def _send(self, batch: list[OutgoingMessage]) -> None:
        attempts = self._retry.attempts()
        while True:
            try:
                return await self._attempt(batch)
            except Exception as error:
                if isinstance(error, OutcomeUnknown):
                    for one in batch:
                        one.uncertain = True
                attempts.failed(error)
            await attempts.pause()

    def _refused(self, batch: list[OutgoingMessage], error: LedgerSealed | LedgerNotFound) -> None:
        """Stop: after a seal the children take over; after a deletion the layout shows it."""
        if self._following.sealed is None:
            _fail(batch, error)
            self._report(batch, error)
            return
        self.waiting.extendleft(one for one in reversed(batch) if not one.is_over)
        self.stopped, self.refused = True, error
        self._following.sealed()

    async def _mismatched(self, batch: list[OutgoingMessage], error: TransactionDomainMismatch) -> None:
        """
        Follow the topic if it has migrated to the family of the transaction; otherwise fail.

        This process may have opened the segment before the migration. The family that served it then refuses the
        transaction before it finds that the segment is sealed. So a producer that sends in transactions only would be
        refused permanently.
        """
        failure: Exception = error
        try:
            if await self._following.has_migrated(self._life):
                self._refused(batch, LedgerSealed(self._segment))
                return
        except Exception as unknown:
            failure = unknown
        else:
            if any(one.has_migrated for one in batch):
                # The transaction began before the migration: the caller can repeat its work in another one.
                failure = TransactionConflict(error.txn_id, "its topic has migrated to another family")
                failure.__cause__ = error
        _fail(batch, failure)
        self._report(batch, failure)

    def _report(self, lost: list[OutgoingMessage], error: Exception) -> None:
        # A message of a transaction need not be repeated: the transaction cannot commit any more.
        if self._failed is not None and any(one.branch is None for one in lost):
            self._failed(error)

    async def _attempt(self, batch: list[OutgoingMessage]) -> None:
        """Send a batch once, without the messages that an earlier attempt confirmed."""
        opened = await self._host.segments.segment(self._segment)
        if not opened.is_of(self._life):
            raise LedgerNotFound(self._segment)
        for one in batch:
            if (one.chosen or one.uncertain) and not one.is_over:
                await self._confirm_in_ancestors(one)
        left = [one for one in batch if not one.is_over]
        # After a partial confirmation, the rest may have gaps that it must not claim, so it is sent in pieces.
        queue = deque(left if len(left) < len(batch) else await self._append(opened, batch))
        while queue:
            piece = take_batch(queue, self._bounds.entry_messages_max, self._bounds.entry_bytes_max)
            queue.extendleft(reversed(await self._append(opened, piece)))

    async def _append(self, opened: OpenSegment, piece: list[OutgoingMessage]) -> list[OutgoingMessage]:
        """Append one entry; return the messages still to be sent if an earlier copy held only some of them."""
        branch = piece[0].branch
        data = encode_entry([one.message for one in piece], self._producer, branch)
        claim = claimed_sequences(piece, self._producer)
        (appended,) = await opened.buffer.append(
            (Append(data, len(piece), branch, claim, principal=piece[0].principal),)
        )
        at = appended.position
        if not appended.duplicate:
            for index, one in enumerate(piece):
                one.succeed(MessageID(self._segment, Position(at.ledger_id, at.entry_id, index)))
            if piece[0].chosen:
                self._highest = await self._beyond.look(opened, claim, self._highest)
            return []
        stored = appended.sequence or claim
        earlier, rest = divide(piece, stored)
        if not earlier:
            raise Conflict(f"{self._segment} names a copy at {appended.position} that holds nothing of what was sent")
        indexes = await _indexes_at(opened, at) or supposed_indexes(stored, piece, self._producer)
        self._confirm(self._segment, at, indexes, earlier)
        return rest

    async def _confirm_in_ancestors(self, one: OutgoingMessage) -> None:
        """
        Confirm a message that is stored in an ancestor: it was sent before a split, and the reply was lost.

        :raises TransactionConflict: the copy belongs to another open transaction or branch.
        """
        for name, ancestor in self._ancestors:
            # The message can have been sent only to the ancestor whose range contains its hash. Elsewhere, an entry may
            # claim its id without holding it.
            if not ancestor.start <= hash_of(one.message, self._producer) <= ancestor.end:
                continue
            opened = await self._host.segments.segment(name)
            found = await opened.ledger.find_sequence(self._producer, one.sequence_id)
            if found is None:
                continue
            # The ledger knows the range of ids that an entry claims, not which ids it holds.
            indexes = await _indexes_at(opened, found.position)
            if indexes is not None and one.sequence_id not in indexes:
                continue
            if found.branch is not None and found.branch != one.branch:
                visibility = await opened.buffer.resolve(found.branch)
                if visibility is Visibility.ABORTED:
                    continue
                if visibility is Visibility.OPEN:
                    raise TransactionConflict(
                        one.branch.txn_id if one.branch else None,
                        f"message {one.sequence_id} of producer {self._producer} stands in another open branch",
                        found.branch.txn_id,
                    )
            supposed = supposed_indexes(
                found.sequence or claimed_sequences([one], self._producer), [one], self._producer
            )
            self._confirm(name, found.position, indexes or supposed, [one])
            return

    def _confirm(self, segment: str, at: Position, indexes: dict[int, int], ones: list[OutgoingMessage]) -> None:
        """Report to the waiting sends the ids of messages in an entry that was stored before."""
        for one in ones:
            if one.sequence_id in indexes:
                one.succeed(MessageID(segment, Position(at.ledger_id, at.entry_id, indexes[one.sequence_id])))
            else:
                one.fail(
                    Conflict(
                        f"sequence id {one.sequence_id} of producer {self._producer} lies between two that were sent "
                        f"before it in the entry {at}; sequence ids have to grow"
                    )
                )


async def _indexes_at(opened: OpenSegment, at: Position) -> dict[int, int] | None:
    """
    Return the index of each sequence id in a stored entry.

    Return None if the entry cannot be read at this position: it has been trimmed, or gets its position only with the
    commit. Then only its claim is known, and the caller treats all claimed ids as stored.
    """
    before = Position(at.ledger_id, at.entry_id - 1)
    try:
        page = await opened.buffer.read(ReadRequest(before, ONE_ENTRY, Isolation.READ_UNCOMMITTED))
    except NotFound:
        return None
    if not page.entries or page.entries[0].position != at:
        return None
    view = EntryView(page.entries[0].data, at, opened.name)
    return {sequence: index for index, sequence in enumerate(view.sequence_ids)}


def _fail(batch: list[OutgoingMessage], error: Exception) -> None:
    for one in batch:
        one.fail(error)
