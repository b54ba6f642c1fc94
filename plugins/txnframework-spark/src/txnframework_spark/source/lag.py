"""The lag of a query: messages that are readable and in no batch yet, for ``query.lastProgress``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from txnframework.broker import Host
from txnframework.model.positions import EARLIEST, EntryRange
from txnframework_spark.source.offsets import Frontier, SegmentOffset

_COUNT_MAX: Final = 1 << 62


async def lag_of(host: Host, planned: Frontier, readable: Frontier) -> dict[str, Any]:
    """Return the number of messages after ``planned`` up to ``readable``, by topic and in total.

    Messages are counted without being read, so those of aborted transactions are included. ``readable`` contains the
    segments that are left to read; a segment that ``planned`` lacks counts completely.
    """
    topics = {topic: await _of_topic(host, planned.get(topic, {}), segments) for topic, segments in readable.items()}
    return {"messages": sum(topics.values()), "topics": topics}


async def _of_topic(host: Host, planned: Mapping[str, SegmentOffset], readable: Mapping[str, SegmentOffset]) -> int:
    messages = 0
    for name, end in readable.items():
        after = planned[name].at if name in planned else EARLIEST
        if after < end.at:
            ledger = (await host.segment(name)).ledger
            messages += (await ledger.count(EntryRange(after, end.at), _COUNT_MAX)).messages
    return messages
