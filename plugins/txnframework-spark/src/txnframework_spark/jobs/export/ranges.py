"""The ranges to export: all messages that are committed and were not exported before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from txnframework.broker import Host
from txnframework.model.layout import Layout
from txnframework.model.positions import EARLIEST, Position
from txnframework_spark.jobs.errors import UnusableFolder
from txnframework_spark.jobs.export.folder import Exported
from txnframework_spark.microbatch.ranges import Range
from txnframework_spark.source.places import first_left


@dataclass(frozen=True, slots=True)
class Due:
    """The ranges of one export, and the end of each segment; ``life`` identifies the topic across deletions."""

    life: int
    ranges: tuple[Range, ...]
    upto: Mapping[str, Position]


async def due(host: Host, layout: Layout, last: Exported | None) -> Due:
    """
    Return the ranges after the last export.

    The first export begins at the first message that was not trimmed; later ones must be complete.
    """
    before = {} if last is None else last.positions()
    ranges: list[Range] = []
    upto: dict[str, Position] = {}
    for segment_id in layout.made():
        name = str(layout.name_of(segment_id))
        opened = await host.segment(name)
        start = before.get(name, EARLIEST) if last is not None else await first_left(opened.ledger)
        # This process may know an older max read position than the last export; exported messages are not repeated.
        end = upto[name] = max(start, await opened.buffer.max_read_position())
        if start < end:
            ranges.append(Range(str(layout.topic), name, start, end))
    return Due(layout.life, tuple(ranges), {**before, **upto})


def check_same(last: Exported | None, store: str, layout: Layout, folder: str) -> None:
    """
    Reject the export of two topics into one folder.

    :raises UnusableFolder: the folder contains exports of another topic, or of one that was deleted since.
    """
    if last is None or (last.store, last.topic, last.life) == (store, str(layout.topic), layout.life):
        return
    if last.topic != str(layout.topic):
        reason = f"holds exports of {last.topic}; name another folder for {layout.topic}"
    elif last.store != store:
        reason = f"holds exports of {last.topic} of another store; name another folder"
    else:
        reason = f"holds exports of a {last.topic} that was deleted since; name another folder for the new one"
    raise UnusableFolder(folder, reason)
