"""Shared parts of the rules of buffers."""

from __future__ import annotations

from itertools import groupby
from typing import Any, ClassVar

from txnframework.interfaces import (
    IAdoptingBuffer,
    ICommitOrderBuffer,
    IInPlaceBuffer,
    IPlannableBuffer,
    ISealableBuffer,
)
from txnframework.model import (
    EARLIEST,
    Append,
    Appended,
    Branch,
    EntryPage,
    EntryRange,
    Isolation,
    Limit,
    Position,
    ProducerSequence,
    ReadableEntry,
    ReadRequest,
    TxnID,
)
from txnframework.model.entries import encode_entry
from txnframework.model.entry_view import EntryMessage, EntryView
from txnframework.testing._suites._coordinator._case import METADATA_FAMILY
from txnframework.testing._suites._processes import TIMEOUT_MS, ProcessRules, abort, begin, commit, held_up, kill
from txnframework.testing.world import World

__all__ = [
    "ENDS_WHEN_SEALED", "PAGE", "TIMEOUT_MS", "BufferRules", "abort", "begin", "commit", "entry", "held_up", "kill",
    "pages", "send", "send_sequence", "skipped", "text_of", "texts_of", "visible",
]  # fmt: skip

ENDS_WHEN_SEALED = METADATA_FAMILY
"""A transaction can still take effect on a sealed segment; in the log family the seal refuses its marker."""

PRODUCER = "producer"

PAGE = Limit(3)
"""Small, so that reads take several pages."""


class BufferRules(ProcessRules):
    """Base class of the rules of buffers."""

    capabilities: ClassVar[tuple[Any, ...]] = (
        IPlannableBuffer,
        IInPlaceBuffer,
        ICommitOrderBuffer,
        ISealableBuffer,
        IAdoptingBuffer,
        ENDS_WHEN_SEALED,
    )

    def subjects(self, opened: World) -> tuple[object, ...]:
        """Return the objects that may declare capabilities: the buffer, its coordinator and the store."""
        return (opened.buffer, opened.coordinator, opened.store)


def entry(text: str, branch: Branch | None = None, *sequences: int, producer: str = "") -> Append:
    """Return an entry with one message per sequence, or with a single message; its text is ``text``."""
    messages = [EntryMessage(None, text.encode(), (), sequence, 0) for sequence in sequences or (0,)]
    token = ProducerSequence(producer or PRODUCER, sequences[0], sequences[-1]) if sequences else None
    data = encode_entry(messages, producer or PRODUCER, branch)
    return Append(data, len(messages), branch, token)


async def send(world: World, text: str, txn_id: TxnID | None = None, branch: int = 0) -> Position:
    """Publish one message, in a transaction's branch or outside transactions; return its position."""
    in_branch = None if txn_id is None else Branch(txn_id, branch)
    (appended,) = await world.buffer.append((entry(text, in_branch),))
    assert not appended.duplicate
    return appended.position


async def send_sequence(world: World, sequence: int, txn_id: TxnID | None = None, branch: int = 0) -> Appended:
    """Publish a message that its producer may have sent before."""
    in_branch = None if txn_id is None else Branch(txn_id, branch)
    (appended,) = await world.buffer.append((entry(f"s{sequence}", in_branch, sequence),))
    return appended


def text_of(found: ReadableEntry) -> str:
    """Return the text of an entry's first message."""
    return (EntryView(found.data).message(0).value or b"").decode()


def texts_of(found: ReadableEntry) -> list[str]:
    """Return the texts of an entry's messages; equal texts in a row are returned once."""
    return [text for text, _ in groupby((one.value or b"").decode() for one in EntryView(found.data).messages())]


async def pages(
    world: World, after: Position = EARLIEST, isolation: Isolation = Isolation.READ_COMMITTED, limit: Limit = PAGE
) -> list[EntryPage]:
    """Read all pages up to the max read position."""
    await world.buffer.max_read_position()
    found: list[EntryPage] = []
    while True:
        page = await world.buffer.read(ReadRequest(after, limit, isolation))
        assert len(page.entries) <= limit.items
        assert page.upto >= after, "reading never moves back"
        if page.upto == after:
            assert not page.entries
            return found
        for one in page.entries:
            assert after < one.position <= page.upto
        for skipped in page.skipped:
            assert after < skipped <= page.upto
        found.append(page)
        after = page.upto


async def visible(world: World, after: Position = EARLIEST) -> list[str]:
    """Return the texts that a reader of committed data sees, in reading order; a batch has one text."""
    return [text for page in await pages(world, after) for one in page.entries for text in texts_of(one)]


async def skipped(world: World) -> list[Position]:
    """
    Return the positions of the tests' messages that a read skipped because their branch was aborted.

    Entries that a family adds itself, such as markers, may be skipped too; they are left out here.
    """
    return [one for page in await pages(world) for one in page.skipped if await _was_sent(world, one)]


async def _was_sent(world: World, position: Position) -> bool:
    """Return whether a test sent the entry."""
    before = Position(position.ledger_id, position.entry_id - 1)
    (found,) = await world.ledger.read(EntryRange(before, position), Limit(1))
    return EntryView(found.data).producer == PRODUCER
