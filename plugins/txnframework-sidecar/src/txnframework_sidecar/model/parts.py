"""How the messages of a transaction are divided into what one marker lists, and put together again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from txnframework.model import Branch, Position
from txnframework.model.entries import EntryView, encode_entry
from txnframework_sidecar.options import SidecarOptions

_SPAN = re.compile(r"([0-9]{1,18}):([0-9]{1,18})-([0-9]{1,18})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Span:
    """Entries of the sidecar without a gap: ``first`` to ``last`` of one ledger."""

    ledger_id: int
    first: int
    last: int

    def __str__(self) -> str:
        """Return ``ledger:first-last``."""
        return f"{self.ledger_id}:{self.first}-{self.last}"

    @classmethod
    def parse(cls, text: str) -> Span:
        """Return the span written as ``ledger:first-last``, or raise ValueError."""
        found = _SPAN.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is not a span (ledger:first-last)")
        return cls(*map(int, found.groups()))

    @property
    def after(self) -> Position:
        """The place before the first entry."""
        return Position(self.ledger_id, self.first - 1)

    @property
    def upto(self) -> Position:
        """Where the last entry stands."""
        return Position(self.ledger_id, self.last)

    def positions(self) -> Iterable[Position]:
        """Return where its entries stand."""
        return (Position(self.ledger_id, number) for number in range(self.first, self.last + 1))


@dataclass(frozen=True, slots=True)
class Run:
    """Messages of one branch and one producer, whose sequence ids grow, in entries without a gap."""

    span: Span
    branch: int
    producer: str
    first_sequence: int
    last_sequence: int
    messages: int
    bytes: int

    @classmethod
    def of(cls, view: EntryView, position: Position, size: int, branch: int) -> Run:
        """Return the run of one entry."""
        span = Span(position.ledger_id, position.entry_id, position.entry_id)
        return cls(span, branch, view.producer, view.first_sequence, view.last_sequence, view.count, size)

    def then(self, other: Run, bounds: SidecarOptions) -> Run | None:
        """Return both as one, None where that cannot be."""
        adjacent = self.span.ledger_id == other.span.ledger_id and self.span.last + 1 == other.span.first
        messages, size = self.messages + other.messages, self.bytes + other.bytes
        if not adjacent or not _go_together(self, other) or not _fits(messages, size, bounds):
            return None
        return replace(
            self,
            span=replace(self.span, last=other.span.last),
            last_sequence=other.last_sequence,
            messages=messages,
            bytes=size,
        )


@dataclass(frozen=True, slots=True)
class Part:
    """What one marker lists: it is read as one entry, of one producer in one branch; there may be nothing."""

    branch: int
    spans: tuple[Span, ...]
    messages: int
    bytes: int


def parts_of(runs: Sequence[Run], bounds: SidecarOptions) -> tuple[Part, ...]:
    """
    Return the parts of a transaction, in the order in which its messages stand in the sidecar.

    One entry cannot hold messages of two producers, nor sequence ids that do not grow: there a part ends, and where it
    is full.
    """
    parts: list[Part] = []
    previous: Run | None = None
    for run in runs:
        last = parts[-1] if parts else None
        if (
            last is not None
            and previous is not None
            and _go_together(previous, run)
            and _fits(last.messages + run.messages, last.bytes + run.bytes, bounds)
            and len(last.spans) < bounds.marker_spans_max
        ):
            parts[-1] = Part(run.branch, (*last.spans, run.span), last.messages + run.messages, last.bytes + run.bytes)
        else:
            parts.append(Part(run.branch, (run.span,), run.messages, run.bytes))
        previous = run
    return tuple(parts) or (Part(0, (), 0, 0),)


def as_one_entry(entries: Sequence[bytes], branch: Branch) -> bytes:
    """Return the messages of several entries of one producer as one entry: the n-th of them has the index n."""
    if len(entries) == 1:
        return entries[0]
    views = [EntryView(data) for data in entries]
    return encode_entry([message for view in views for message in view.messages()], views[0].producer, branch)


def _go_together(run: Run, other: Run) -> bool:
    return run.branch == other.branch and run.producer == other.producer and run.last_sequence < other.first_sequence


def _fits(messages: int, size: int, bounds: SidecarOptions) -> bool:
    return messages <= bounds.marker_messages_max and size <= bounds.marker_bytes_max
