"""A part of a batch's input, as both source and sink name it."""

from __future__ import annotations

from dataclasses import dataclass

from txnframework.model.positions import Position


@dataclass(frozen=True, slots=True)
class Range:
    """The entries of one segment after ``start``, up to and including ``end``."""

    topic: str
    segment: str
    start: Position
    end: Position
    incarnation: int | None = None
