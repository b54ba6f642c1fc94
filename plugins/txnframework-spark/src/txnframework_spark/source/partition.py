"""What one read task is told: plain values, pickled from the driver to an executor."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from txnframework.model.ids import Branch
from txnframework.model.positions import Position
from txnframework_spark.microbatch.registration import Reading
from txnframework_spark.options.stores import StoreOptions
from txnframework_spark.source.conditions import Condition


@dataclass(frozen=True)
class SegmentPartition(InputPartition):
    """A range of one segment, to be read straight from the ledger.

    ``aborted``: branches whose entries do not count; valid for as long as the data. ``deleted``: inclusive ranges of
    entries, and ``partial``: indexes by entry, that the subscription acknowledged one by one. ``reading``: what to
    register first. ``first`` and ``stop``, of a batch: the first message that is read, and the first that is not, where
    they stand within an entry; ``conditions``: what else a message must fulfil. ``skips_trimmed``: what is trimmed
    before it was read is left out.
    """

    stores: StoreOptions
    segment: str
    after: Position
    upto: Position
    aborted: frozenset[Branch] = frozenset()
    deleted: tuple[tuple[Position, Position], ...] = ()
    partial: tuple[tuple[Position, frozenset[int]], ...] = ()
    reading: Reading | None = None
    first: Position | None = None
    stop: Position | None = None
    conditions: tuple[Condition, ...] = ()
    skips_trimmed: bool = False
