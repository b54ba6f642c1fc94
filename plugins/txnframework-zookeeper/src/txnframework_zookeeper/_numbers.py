"""
Numbers for sequential records: reserved in blocks from one counter, so that no number is given twice.

All prefixes share the counter, and the multi that writes the first record of a block raises it. A counter for each
prefix would have to be written with each record, and removed later, and writers would conflict on it. The unused
numbers of a process's block are lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from txnframework.errors import CorruptRecord, UnknownFormat
from txnframework.model.records import UNREADABLE
from txnframework_zookeeper._known import Remembered
from txnframework_zookeeper.connection._requests import Node, Op, SetNode
from txnframework_zookeeper.connection._zookeeper import ZooKeeper
from txnframework_zookeeper.tree._layout import FLAT_DIGIT, SPREAD_DIGIT

NUMBERS = "/numbers"
FORMAT = 1
FIRST = msgspec.json.encode((FORMAT, 0))
"""The initial data of the counter's node: the format, and the first number that is not reserved."""

_DIGITS = 20
# The first records of a client below one prefix, up to this number, have numbers that begin with the flat digit.
FLAT_MAX = 100


@dataclass(slots=True)
class Given:
    """Numbers for one multi, which must contain ``op``, if there is one, to reserve them."""

    numbers: list[str]
    op: Op | None = None
    is_applied: bool = False


class Numbers:
    """The numbers that one client gives."""

    def __init__(self, zookeeper: ZooKeeper, block_size: int, prefixes_max: int) -> None:
        self._zookeeper = zookeeper
        self._block_size = block_size
        self._next = self._stop = 0
        self._reserving = asyncio.Lock()
        self._given: Remembered[int] = Remembered(prefixes_max)

    def left(self, prefixes: Sequence[str]) -> list[str] | None:
        """Return a number never given before for a record below each prefix; None: too few are reserved."""
        first = self._next
        if first + len(prefixes) > self._stop:
            return None
        self._next += len(prefixes)
        return self._written(first, prefixes)

    @asynccontextmanager
    async def give(self, prefixes: Sequence[str]) -> AsyncIterator[Given]:
        """Lend such numbers for one attempt of a multi, which reserves a new block if needed."""
        numbers = self.left(prefixes)
        if numbers is None:
            async with self._reserving:
                numbers = self.left(prefixes)
                if numbers is None:
                    first, version = _decode(await self._zookeeper.get(NUMBERS))
                    # Above the numbers of earlier attempts: another client may have put a record there by its key.
                    first = max(first, self._stop)
                    stop = first + max(self._block_size, len(prefixes))
                    op = SetNode(NUMBERS, msgspec.json.encode((FORMAT, stop)), version)
                    self._next = self._stop = first + len(prefixes)
                    given = Given(self._written(first, prefixes), op)
                    yield given
                    # If the reply of the multi is lost, the block is not used.
                    if given.is_applied:
                        self._stop = stop
                    return
        yield Given(numbers)

    def _written(self, first: int, prefixes: Sequence[str]) -> list[str]:
        """Return numbers with 20 digits; the first digit spreads the records of a client that puts many."""
        written: list[str] = []
        for number, prefix in enumerate(prefixes, first):
            given = self._given.get(prefix) or 0
            self._given.note(prefix, given + 1)
            digit = FLAT_DIGIT if given < FLAT_MAX else SPREAD_DIGIT
            written.append(f"{digit}{number:0{_DIGITS - 1}d}")
        return written


def _decode(node: Node | None) -> tuple[int, int]:
    """Return the first number that is not reserved, and the version of the counter's node."""
    if node is None:
        raise CorruptRecord(NUMBERS, "its node", "it is not there")
    try:
        form, first = msgspec.json.decode(node.data, type=list[int])
    except UNREADABLE as error:
        raise CorruptRecord(NUMBERS, "its value", str(error)) from error
    if form != FORMAT:
        raise UnknownFormat(NUMBERS, form)
    return first, node.stat.version
