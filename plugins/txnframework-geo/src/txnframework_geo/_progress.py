"""The stored progress of a replication: a versioned document, which each transaction of the target replaces."""

from __future__ import annotations

import msgspec

from txnframework.errors import InvalidInput, UnknownFormat
from txnframework.model.positions import EARLIEST, Position

FORMAT = 1


class Progress(msgspec.Struct, frozen=True):
    """
    What the target has: everything up to ``ends`` of every segment except the entries in ``late``, and nothing after.

    ``step``: counts the transactions of the target. ``source``: the identity of the source. ``topics``: their names.
    ``lives``: the life of each topic, so that a topic that was created again is not taken for the former one. A segment
    that is not in ``ends`` begins at its first message.
    """

    step: int
    source: str
    topics: tuple[str, ...]
    lives: dict[str, int]
    ends: dict[str, Position]
    late: dict[str, tuple[Position, ...]] = {}

    def end_of(self, segment: str) -> Position:
        """Return the position up to which the target has a segment."""
        return self.ends.get(segment, EARLIEST)

    def held_from(self, segment: str) -> Position:
        """Return the position up to which the source need not keep a segment."""
        late = self.late.get(segment)
        return Position(late[0].ledger_id, late[0].entry_id - 1) if late else self.end_of(segment)

    def reaches(self, segment: str, end: Position) -> bool:
        """Return whether the target has everything of a segment up to ``end``."""
        return self.end_of(segment) >= end and not any(late <= end for late in self.late.get(segment, ())[:1])

    def require_same(self, name: str, source: str, topics: tuple[str, ...]) -> None:
        """
        Check that this is the progress of a replication from the same source, of the same topics.

        :raises InvalidInput: it is that of another one.
        """
        if self.source != source:
            raise InvalidInput(
                f"replication {name} was started from the deployment {self.source!r}, and --from is {source!r}, "
                "another one or one that was restored: choose another --name"
            )
        if set(self.topics) != set(topics):
            raise InvalidInput(
                f"replication {name} replicates {', '.join(self.topics)}: name these topics, or choose another --name"
            )


class _Format(msgspec.Struct):
    format: int


class _Record(msgspec.Struct, kw_only=True):
    format: int = FORMAT
    step: int
    source: str
    topics: tuple[str, ...]
    lives: dict[str, int]
    ends: dict[str, str]
    late: dict[str, tuple[str, ...]]


def encode(progress: Progress) -> bytes:
    """Return the stored form."""
    ends = {segment: str(end) for segment, end in progress.ends.items()}
    late = {segment: tuple(map(str, positions)) for segment, positions in progress.late.items()}
    record = _Record(
        step=progress.step, source=progress.source, topics=progress.topics, lives=progress.lives, ends=ends, late=late
    )
    return msgspec.json.encode(record)


def decode(stored: bytes | None, topic: str) -> Progress:
    """
    Return the progress that ``encode`` wrote to ``topic``.

    :raises UnknownFormat: a later release wrote it.
    :raises InvalidInput: it is not the progress of a replication.
    """
    try:
        version = msgspec.json.decode(stored or b"", type=_Format).format
        if version != FORMAT:
            raise UnknownFormat(f"the progress in {topic}", version)
        record = msgspec.json.decode(stored or b"", type=_Record)
        ends = {segment: Position.parse(end) for segment, end in record.ends.items()}
        late = {segment: tuple(map(Position.parse, positions)) for segment, positions in record.late.items()}
    except (msgspec.MsgspecError, ValueError) as error:
        raise InvalidInput(
            f"{topic} has a message that is not the progress of a replication: choose another --name"
        ) from error
    return Progress(record.step, record.source, record.topics, record.lives, ends, late)
