"""Snapshots of several topics: each transaction is in all of them with all of its messages, or in none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txnframework.broker import Host, OpenSegment, UndecidedMessages, undecided_after
from txnframework.client._base import Name, name_from, open_segment
from txnframework.client._content_types import T
from txnframework.client._openings import opens
from txnframework.client._reader import Reader, TopicSnapshot, open_reader
from txnframework.client._sends.encoded_values import require_serializer
from txnframework.errors import InvalidInput, TopicNotFound, Unavailable
from txnframework.interfaces import IInPlaceBuffer
from txnframework.model.ids import TxnID
from txnframework.model.layout import Layout
from txnframework.model.names import TopicName, topic_of
from txnframework.model.positions import EARLIEST, Limit, Position
from txnframework.model.reads import Isolation, ReadRequest, Visibility

if TYPE_CHECKING:
    from txnframework.serializers import Serializer


@dataclass(frozen=True, slots=True)
class Snapshot:
    """
    What several topics contain at one time; created by ``Client.snapshot``.

    It holds no resources and can be read any number of times, with the same result, until messages are trimmed or a
    topic is deleted. ``ends``: where each segment ends in it. ``hidden``: the transactions that have messages before
    and after these ends; readers of the snapshot leave out all their messages. ``undecided``: by segment, what is not
    in it because it waited for an open transaction.
    """

    topics: tuple[TopicName, ...]
    ends: Mapping[str, Position]
    hidden: frozenset[TxnID]
    undecided: tuple[UndecidedMessages, ...]
    _lives: Mapping[TopicName, int]
    _host: Host

    def __repr__(self) -> str:
        return f"<Snapshot of {', '.join(map(str, self.topics))}>"

    @opens
    async def reader(self, topic: Name, *, serializer: Serializer[T] | None = None) -> Reader[T]:
        """
        Open a reader of one of the topics, as it is in the snapshot; it starts at the first message.

        :param serializer: decodes ``Message.content`` (``txnframework.serializers``); default: contents are bytes.
        :raises InvalidInput: the topic is not in the snapshot.
        :raises TopicNotFound: the topic was deleted; a new topic of its name is not in the snapshot.
        """
        require_serializer(serializer)
        target = name_from(topic)
        if target not in self.topics:
            raise InvalidInput(f"the snapshot contains {', '.join(map(str, self.topics))}, and not {target}")
        undecided = tuple(one for one in self.undecided if topic_of(one.segment) == target)
        part = TopicSnapshot(self._lives[target], self.ends, self.hidden, undecided)
        reader = Reader[T](self._host, target, serializer=serializer, snapshot=part)
        return await open_reader(self._host, reader)


async def take_snapshot(host: Host, topics: tuple[TopicName, ...]) -> Snapshot:
    """
    Return a snapshot of what can be read now.

    First the end of every segment is read, up to which all transactions have ended. The ends are read one after
    another, so a transaction may have messages before the end of one segment and after that of another. But all its
    messages are stored before it ends, and it has ended if any of them is before an end. So what is stored between the
    ends and the tails, which are read afterwards, shows every such transaction.
    """
    before = layouts = [await host.topics.finish_changes(topic) for topic in topics]
    segments = await _segments(host, layouts)
    ends = {segment.name: await _end(segment) for segment in segments}
    waiting = [await undecided_after(segment, ends[segment.name]) for segment in segments]
    # Again, because a segment may have been split meanwhile: its transactions go on in its children. A topic that has
    # migrated meanwhile goes on in a child, too.
    layouts = [await host.topics.finish_changes(topic) for topic in topics]
    for former, layout in zip(before, layouts, strict=True):
        if not layout.continues(former):
            raise TopicNotFound(str(layout.topic), deleted=True)  # the ends are those of an earlier topic of its name
    hidden: set[TxnID] = set()
    for segment in await _segments(host, layouts):
        hidden |= await _written_after(host, segment, ends.get(segment.name, EARLIEST))
    lives = {topic: layout.life for topic, layout in zip(topics, before, strict=True)}
    return Snapshot(topics, ends, frozenset(hidden), tuple(filter(None, waiting)), lives, host)


async def _segments(host: Host, layouts: Iterable[Layout]) -> list[OpenSegment]:
    found = []
    for layout in layouts:
        for part in layout.in_order():
            found.append(await open_segment(host, layout, part.id))
    return found


async def _end(segment: OpenSegment) -> Position:
    if not IInPlaceBuffer.providedBy(segment.buffer):
        raise InvalidInput(
            f"{segment.name} is read in the order of commits, which a snapshot of several topics cannot contain"
        )
    return await segment.buffer.max_read_position()


async def _written_after(host: Host, segment: OpenSegment, after: Position) -> set[TxnID]:
    """Return the transactions, except aborted ones, that have messages between a position and the present tail."""
    bounds = host.config.subscriptions
    limit = Limit(bounds.read_entries_max, bounds.read_bytes_max)
    tail = (await segment.ledger.tail()).last_confirmed
    found: set[TxnID] = set()
    while after < tail:
        page = await segment.buffer.read(ReadRequest(after, limit, Isolation.READ_UNCOMMITTED))
        for entry in page.entries:
            if entry.branch is not None and entry.visibility is not Visibility.ABORTED:
                found.add(entry.branch.txn_id)
        upto = max([page.upto, *(entry.position for entry in page.entries[-1:])])
        if upto <= after:
            raise Unavailable(f"{segment.name}: what is stored after {after} cannot be read; take another snapshot")
        after = upto
    return found
