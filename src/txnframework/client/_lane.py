"""One producer's way into one segment: entries one after the other, each confirmed before the next."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from txnframework.broker import Host, OpenSegment
from txnframework.client._beyond_window import BeyondWindow
from txnframework.client._calls import Retrying
from txnframework.client._messages import MessageID
from txnframework.client._sending import Outgoing, claimed, divide, hash_of, supposed_indexes, take_batch
from txnframework.config import ClientSection
from txnframework.errors import (
    Closed,
    Conflict,
    LedgerNotFound,
    LedgerSealed,
    NotFound,
    OutcomeUnknown,
    TransactionConflict,
)
from txnframework.model.entries import EntryView, encode_entry
from txnframework.model.layout import Segment
from txnframework.model.ledger import Append
from txnframework.model.positions import Limit, Position
from txnframework.model.reading import Isolation, ReadRequest, Visibility

ONE_ENTRY = Limit(1)


class Lane:
    """
    Sends what is put into it, in order.

    When the segment turns out to be sealed the lane stops, keeps what was not sent, and calls ``sealed``; with
    ``sealed`` None the senders are told instead. ``ancestors`` are the segments that this one descends from. What has
    the segment's name in another ``life`` of the topic is not meant.
    """

    def __init__(
        self,
        host: Host,
        retrying: Retrying,
        producer: str,
        segment: str,
        ancestors: tuple[tuple[str, Segment], ...],
        sealed: Callable[[], None] | None,
        life: int,
        beyond: BeyondWindow,
    ) -> None:
        self.waiting: deque[Outgoing] = deque()
        self.stopped = False
        self.refused: LedgerSealed | LedgerNotFound | None = None
        """Why the segment took nothing when the lane stopped."""
        self._host = host
        self._bounds: ClientSection = host.config.client
        self._retrying = retrying
        self._producer = producer
        self._segment = segment
        self._ancestors = ancestors
        self._beyond = beyond
        # The highest chosen sequence that is stored here; None: not known.
        self._highest: int | None = None
        self._sealed = sealed
        self._life = life
        self._task: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether something is under way."""
        return self._task is not None

    def put(self, outgoing: Outgoing) -> None:
        """Send it after what was put before."""
        self.waiting.append(outgoing)
        if self._task is None and not self.stopped:
            self._task = asyncio.ensure_future(self._run())
            self._task.add_done_callback(self._ended)

    async def idle(self) -> None:
        """Wait until nothing is under way: all is sent, or the lane is stopped."""
        while self._task is not None:
            await asyncio.wait({self._task})

    def fail(self, error: Exception) -> None:
        """Give up what waits, and go on with what comes."""
        self.give_up(error)
        self.stopped = False

    def give_up(self, error: Exception) -> None:
        """Tell the senders of what waits why it is not sent."""
        while self.waiting:
            self.waiting.popleft().fail(error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        # A task that is cancelled before its first step never runs, so nothing in _run could have told the senders.
        if self._task is task:
            self._task = None
            self.give_up(self._not_sent())

    def _not_sent(self) -> Closed:
        return Closed(f"sending to {self._segment} was stopped before the turn of this message came")

    async def _run(self) -> None:
        batch: list[Outgoing] = []
        try:
            if self._bounds.linger_ms:
                await self._host.environment.sleep_until(self._host.environment.now_ms() + self._bounds.linger_ms)
            while self.waiting and not self.stopped:
                batch = take_batch(self.waiting, self._bounds.entry_messages_max, self._bounds.entry_bytes_max)
                await self._send(batch)
        except BaseException as error:
            # The event loop ends, for instance. Whoever waits is to know, or it and ``close`` would wait for ever.
            _fail(batch, OutcomeUnknown(f"sending to {self._segment} was stopped while it was under way: {error!r}"))
            self.give_up(self._not_sent())
            raise
        finally:
            self._task = None

    async def _send(self, batch: list[Outgoing]) -> None:
        def unsure(error: Exception) -> None:
            for one in batch:
                one.uncertain = one.uncertain or isinstance(error, OutcomeUnknown)

        try:
            await self._retrying.run(partial(self._attempt, batch), unsure)
        except (LedgerSealed, LedgerNotFound) as error:
            # Sealed, its children take over; deleted, the layout says so.
            if self._sealed is None:
                _fail(batch, error)
                return
            self.waiting.extendleft(one for one in reversed(batch) if not one.is_over)
            self.stopped, self.refused = True, error
            self._sealed()
        except Exception as error:  # whatever a store raises, the sender is to know
            _fail(batch, error)

    async def _attempt(self, batch: list[Outgoing]) -> None:
        """Send a batch once; what was confirmed in an earlier attempt is left out."""
        opened = await self._host.segment(self._segment)
        if not opened.is_of(self._life):
            raise LedgerNotFound(self._segment)
        for one in batch:
            if one.may_stand_elsewhere and not one.is_over:
                await self._confirm_in_ancestors(one)
        left = [one for one in batch if not one.is_over]
        # Confirming some of a batch may leave gaps that the rest must not claim: then it goes on in pieces.
        queue = deque(left if len(left) < len(batch) else await self._append(opened, batch))
        while queue:
            piece = take_batch(queue, self._bounds.entry_messages_max, self._bounds.entry_bytes_max)
            queue.extendleft(reversed(await self._append(opened, piece)))

    async def _append(self, opened: OpenSegment, piece: list[Outgoing]) -> list[Outgoing]:
        """Append one entry; return what is still to be sent because an earlier copy held only the others."""
        branch = piece[0].branch
        data = encode_entry([one.message for one in piece], self._producer, branch)
        claim = claimed(piece, self._producer)
        (appended,) = await opened.buffer.append(
            (Append(data, len(piece), branch, claim, principal=piece[0].principal),)
        )
        if not appended.duplicate:
            for index, one in enumerate(piece):
                one.succeed(MessageID(self._segment, _at(appended.position, index)))
            if piece[0].chosen:
                self._highest = await self._beyond.look(opened, claim, self._highest)
            return []
        stored = appended.sequence or claim
        earlier, rest = divide(piece, stored)
        if not earlier:
            raise Conflict(f"{self._segment} names a copy at {appended.position} that holds nothing of what was sent")
        at = appended.position
        indexes = await _indexes_at(opened, at) or supposed_indexes(stored, piece, self._producer)
        self._confirm(self._segment, at, indexes, earlier)
        return rest

    async def _confirm_in_ancestors(self, one: Outgoing) -> None:
        """
        Confirm a message that stands in a segment this one descends from: sent before a split, its reply lost.

        :raises TransactionConflict: the copy belongs to another open transaction or branch.
        """
        for name, ancestor in self._ancestors:
            # Only the ancestor that covers the hash can have been sent this message: what an entry claims of others
            # was never meant for it.
            if not ancestor.start <= hash_of(one.message, self._producer) <= ancestor.end:
                continue
            opened = await self._host.segment(name)
            found = await opened.ledger.find_sequence(self._producer, one.sequence_id)
            if found is None:
                continue
            # The ledger knows from which number to which an entry goes, not which of them it holds.
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
            supposed = supposed_indexes(found.sequence or claimed([one], self._producer), [one], self._producer)
            self._confirm(name, found.position, indexes or supposed, [one])
            return

    def _confirm(self, segment: str, at: Position, indexes: dict[int, int], ones: list[Outgoing]) -> None:
        """Tell the senders where their messages stand: in an entry that was there before."""
        for one in ones:
            if one.sequence_id in indexes:
                one.succeed(MessageID(segment, _at(at, indexes[one.sequence_id])))
            else:
                one.fail(
                    Conflict(
                        f"sequence id {one.sequence_id} of producer {self._producer} lies between two that were sent "
                        f"before it in the entry {at}; sequence ids have to grow"
                    )
                )


async def _indexes_at(opened: OpenSegment, at: Position) -> dict[int, int] | None:
    """
    Return where in an entry each sequence id stands.

    None: it cannot be read there, because it was trimmed since, or gets its place only with the commit. That an entry
    with these numbers was stored is known then, and taken for all of them.
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


def _fail(batch: list[Outgoing], error: Exception) -> None:
    for one in batch:
        one.fail(error)


def _at(entry: Position, index: int) -> Position:
    return Position(entry.ledger_id, entry.entry_id, index)
