"""Small ranges of several segments in one read task: a task costs two calls of Python processes, and they cost little.

Only ranges of few messages share a task, so that costly work on each row stays as parallel as without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql.datasource import InputPartition

from txnframework.broker import Host
from txnframework.model.positions import EntryRange
from txnframework_spark.source.partitions import SegmentPartition, of_each

COMBINED_MESSAGES_MAX: Final = 100
"""The most messages of a task that reads several segments."""


@dataclass(frozen=True)
class CombinedPartition(InputPartition):
    """Small ranges of several segments, which one task reads one after another."""

    parts: tuple[SegmentPartition, ...]


Task = SegmentPartition | CombinedPartition


async def combine_small(host: Host, partitions: Sequence[SegmentPartition]) -> list[Task]:
    """Return tasks that read the same, in order: neighbours of few messages become one task."""
    short = [one for one in partitions if _is_short(one)]
    if len(short) < 2:
        return list(partitions)

    async def count(one: SegmentPartition) -> int:
        ledger = (await host.segment(one.segment)).ledger
        return (await ledger.count(EntryRange(one.after, one.upto), COMBINED_MESSAGES_MAX + 1)).messages

    counts = await of_each(short, count)
    return group_small(partitions, {one.segment: messages for one, messages in zip(short, counts, strict=True)})


def _is_short(partition: SegmentPartition) -> bool:
    """Whether the range may have few messages: an entry has at least one, and ledgers are not counted together."""
    after, upto = partition.after, partition.upto
    return after.ledger_id == upto.ledger_id and upto.entry_id - after.entry_id <= COMBINED_MESSAGES_MAX


def group_small(partitions: Sequence[SegmentPartition], counts: Mapping[str, int]) -> list[Task]:
    """Return the tasks, in order; ``counts``: the messages by segment of the ranges that may share a task."""
    found: list[Task] = []
    few: list[SegmentPartition] = []
    total = 0
    for partition in partitions:
        messages = counts.get(partition.segment, COMBINED_MESSAGES_MAX + 1)
        if total + messages > COMBINED_MESSAGES_MAX:
            found += _as_tasks(few)
            few, total = [], 0
        few.append(partition)
        total += messages
    return found + _as_tasks(few)


def _as_tasks(few: Sequence[SegmentPartition]) -> list[Task]:
    return [CombinedPartition(tuple(few))] if len(few) > 1 else list(few)
