"""Numbers for sequential records: reserved in blocks from one counter, so that none is ever given twice.

The counter is that of all prefixes and is raised before a number of the block is used. A prefix therefore needs no
counter of its own that would have to be written with each record, contended for, and cleaned up; what a process does
not use of its block is lost.
"""

from __future__ import annotations

import asyncio

import msgspec

from txnframework.errors import CorruptRecord, OutcomeUnknown, UnknownFormat
from txnframework_zookeeper._errors import MultiFailed
from txnframework_zookeeper._kazoo import ZooKeeper
from txnframework_zookeeper._known import Remembered
from txnframework_zookeeper._layout import FLAT_DIGIT, SPREAD_DIGIT
from txnframework_zookeeper._requests import SetNode

NUMBERS = "/numbers"
FORMAT = 1
FIRST = msgspec.json.encode((FORMAT, 0))
"""What the counter's node holds at first: format and the first number that is not reserved."""

_DIGITS = 20
# Of so many records that one client puts below one prefix the numbers begin with the flat digit.
FLAT_MAX = 100


class Numbers:
    """The numbers that one client gives."""

    def __init__(self, zookeeper: ZooKeeper, block_size: int, prefixes_max: int) -> None:
        self._zookeeper = zookeeper
        self._block_size = block_size
        self._next = self._stop = 0
        self._reserving = asyncio.Lock()
        self._given: Remembered[int] = Remembered(prefixes_max)

    async def next_below(self, prefix: str) -> str:
        """Return the 20 digits of a number that nobody was given before."""
        while self._next >= self._stop:
            async with self._reserving:
                if self._next >= self._stop:
                    await self._reserve()
        number, self._next = self._next, self._next + 1
        given = self._given.get(prefix) or 0
        self._given.note(prefix, given + 1)
        first = FLAT_DIGIT if given < FLAT_MAX else SPREAD_DIGIT
        return f"{first}{number:0{_DIGITS - 1}d}"

    async def _reserve(self) -> None:
        """Take a block. A reply that is lost, or a caller who is cancelled, loses one that nobody was given."""
        while True:
            node = await self._zookeeper.get(NUMBERS)
            first = _decode(None if node is None else node.data)
            assert node is not None
            data = msgspec.json.encode((FORMAT, first + self._block_size))
            try:
                await self._zookeeper.multi([SetNode(NUMBERS, data, node.stat.version)])
            except (MultiFailed, OutcomeUnknown):
                continue  # somebody else took a block, or this was taken and is lost; reading waits for a connection
            self._next, self._stop = first, first + self._block_size
            return


def _decode(data: bytes | None) -> int:
    if data is None:
        raise CorruptRecord(NUMBERS, "its node", "it is not there")
    try:
        found = msgspec.json.decode(data, type=list[int])
        form, first = found
    except (msgspec.DecodeError, ValueError) as error:
        raise CorruptRecord(NUMBERS, "its value", str(error)) from error
    if form != FORMAT:
        raise UnknownFormat(NUMBERS, form)
    return first
