"""The description of one read task: plain values, pickled from the driver to an executor."""

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
    """A range of one segment, read directly from the ledger.

    ``aborted``: branches whose entries do not count; valid as long as the data exists. ``deleted``: inclusive ranges of
    entries, and ``partial``: indexes by entry, that the subscription acknowledged individually. ``reading``: the
    registration to make first. ``first`` and ``stop``, only of a batch: the first message to read and the first one not
    to read, if they lie within an entry. ``conditions``: further conditions on a message. ``skips_trimmed``: messages
    that are trimmed before they are read are skipped.
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
