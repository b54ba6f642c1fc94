"""Division of a transaction's messages into parts, one for each marker, and joining of the parts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from txnframework.model import Branch, Position
from txnframework.model.entries import EntryView, encode_entry
from txnframework_sidecar.options import SidecarOptions

_SPAN = re.compile(r"([0-9]{1,18}):([0-9]{1,18})-([0-9]{1,18})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive entries ``first`` to ``last`` of one ledger, of the sidecar or an own ledger."""

    ledger_id: int
    first: int
    last: int

    def __str__(self) -> str:
        """Return ``ledger:first-last``."""
        return f"{self.ledger_id}:{self.first}-{self.last}"

    @classmethod
    def parse(cls, text: str) -> Span:
        """
        Return the span written as ``ledger:first-last``.

        :raises ValueError: the text is not a span.
        """
        found = _SPAN.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is not a span (ledger:first-last)")
        return cls(*map(int, found.groups()))

    @property
    def after(self) -> Position:
        """The position before the first entry."""
        return Position(self.ledger_id, self.first - 1)

    @property
    def upto(self) -> Position:
        """The position of the last entry."""
        return Position(self.ledger_id, self.last)


@dataclass(frozen=True, slots=True)
class MessageRun:
    """
    Messages of one branch and one producer with increasing sequence ids, in consecutive entries.

    ``own``: the messages are in the transaction's own ledger instead of the sidecar. ``begun`` and ``upto``: the first
    and the last entry of the sidecar that holds or refers to them; entries of other transactions may be between these.
    """

    span: Span
    branch: int
    producer: str
    first_sequence: int
    last_sequence: int
    messages: int
    bytes: int
    begun: Position
    upto: Position
    own: bool = False

    @classmethod
    def of(cls, view: EntryView, position: Position, size: int, branch: int) -> MessageRun:
        """Return the run of one entry of the sidecar."""
        span = Span(position.ledger_id, position.entry_id, position.entry_id)
        sequences = (view.first_sequence, view.last_sequence)
        return cls(span, branch, view.producer, *sequences, view.count, size, position, position)

    def then(self, other: MessageRun, bounds: SidecarOptions) -> MessageRun | None:
        """Return both runs joined; None if one run cannot hold both."""
        adjacent = self.span.ledger_id == other.span.ledger_id and self.span.last + 1 == other.span.first
        messages, size = self.messages + other.messages, self.bytes + other.bytes
        if not adjacent or not _go_together(self, other) or not fits(messages, size, bounds):
            return None
        return replace(
            self,
            span=replace(self.span, last=other.span.last),
            last_sequence=other.last_sequence,
            messages=messages,
            bytes=size,
            upto=other.upto,
        )


@dataclass(frozen=True, slots=True)
class Part:
    """
    The messages that one marker lists. They are read as one entry of one producer in one branch; it may be empty.

    ``own``: its spans are in the transaction's own ledger.
    """

    branch: int
    spans: tuple[Span, ...]
    messages: int
    bytes: int
    own: bool = False


def parts_of(runs: Sequence[MessageRun], bounds: SidecarOptions) -> tuple[Part, ...]:
    """
    Return the parts of a transaction, in the order of its messages in the sidecar.

    A part ends where it is full, where the producer changes, and where sequence ids do not increase: one entry cannot
    hold such messages. Messages in an own ledger have parts of their own. Entries there are consecutive, so each of
    these parts has one span.
    """
    parts: list[Part] = []
    previous: MessageRun | None = None
    for run in runs:
        last = parts[-1] if parts else None
        if (
            last is not None
            and previous is not None
            and _go_together(previous, run)
            and fits(last.messages + run.messages, last.bytes + run.bytes, bounds)
            and len(last.spans) < bounds.marker_spans_max
        ):
            spans = (*last.spans, run.span)
            parts[-1] = replace(last, spans=spans, messages=last.messages + run.messages, bytes=last.bytes + run.bytes)
        else:
            parts.append(Part(run.branch, (run.span,), run.messages, run.bytes, run.own))
        previous = run
    return tuple(parts) or (Part(0, (), 0, 0),)


def as_one_entry(entries: Sequence[bytes], branch: Branch) -> bytes:
    """Return the messages of several entries of one producer as one entry; the n-th message has index n."""
    if len(entries) == 1:
        return entries[0]
    views = [EntryView(data) for data in entries]
    return encode_entry([message for view in views for message in view.messages()], views[0].producer, branch)


def fits(messages: int, size: int, bounds: SidecarOptions) -> bool:
    """Return whether one marker can list this much."""
    return messages <= bounds.marker_messages_max and size <= bounds.marker_bytes_max


def _go_together(run: MessageRun, other: MessageRun) -> bool:
    same = (run.branch, run.producer, run.own) == (other.branch, other.producer, other.own)
    return same and run.last_sequence < other.first_sequence
