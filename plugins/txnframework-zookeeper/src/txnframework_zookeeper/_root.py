"""
The nodes at the root of a store: its identity and format, and the counter of sequential records.

Numbers of sequential records are reserved in blocks from the one counter, so that no number is given twice. All
prefixes share the counter, and the multi that writes the first record of a block raises it. A counter for each prefix
would have to be written with each record, and removed later, and writers would conflict on it. The unused numbers of a
process's block are lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from txnframework.errors import Conflict, CorruptRecord, InvalidInput, UnknownFormat
from txnframework.model.records import UNREADABLE
from txnframework_zookeeper._nodes import BoundedCache
from txnframework_zookeeper.connection._client import ZooKeeperClient
from txnframework_zookeeper.connection._requests import CreateNode, MultiFailed, Node, Op, SetNode
from txnframework_zookeeper.tree._index import INDEXES
from txnframework_zookeeper.tree._layout import FLAT_DIGIT, LIVENESS, RECORDS, SPREAD_DIGIT
from txnframework_zookeeper.tree._records import CHUNKS

COUNTER = "/numbers"
COUNTER_FORMAT = 1
INITIAL_COUNTER = msgspec.json.encode((COUNTER_FORMAT, 0))
"""The initial data of the counter's node: the format, and the first number that is not reserved."""

_DIGITS = 20
# One digit is not counted with.
_NUMBER_LIMIT = 10 ** (_DIGITS - 1) - 1
# The first records of a client below one prefix, up to this number, have numbers that begin with the flat digit.
FLAT_MAX = 100


@dataclass(slots=True)
class NumberReservation:
    """
    Numbers for one multi.

    The multi must contain ``op``, if there is one, to reserve the numbers.
    """

    numbers: list[str]
    op: Op | None = None
    is_applied: bool = False


class SequenceNumbers:
    """The numbers that one client gives."""

    def __init__(self, zookeeper: ZooKeeperClient, block_size: int, prefixes_max: int) -> None:
        self._zookeeper = zookeeper
        self._block_size = block_size
        self._next = self._stop = 0
        self._reserving = asyncio.Lock()
        self._given: BoundedCache[int] = BoundedCache(prefixes_max)

    def take(self, prefixes: Sequence[str]) -> list[str] | None:
        """Return a number never given before for a record below each prefix; None: too few are reserved."""
        first = self._next
        if first + len(prefixes) > self._stop:
            return None
        self._next += len(prefixes)
        return self._format(first, prefixes)

    @asynccontextmanager
    async def reserve(self, prefixes: Sequence[str]) -> AsyncIterator[NumberReservation]:
        """Provide numbers for one attempt of a multi during the block; the multi reserves new numbers if needed."""
        numbers = self.take(prefixes)
        if numbers is None:
            async with self._reserving:
                numbers = self.take(prefixes)
                if numbers is None:
                    first, version = _decode_counter(await self._zookeeper.get(COUNTER))
                    # Above the numbers of earlier attempts: another client may have put a record there by its key.
                    first = max(first, self._stop)
                    stop = first + max(self._block_size, len(prefixes))
                    op = SetNode(COUNTER, msgspec.json.encode((COUNTER_FORMAT, stop)), version)
                    self._next = self._stop = first + len(prefixes)
                    given = NumberReservation(self._format(first, prefixes), op)
                    yield given
                    # If the reply of the multi is lost, the block is not used.
                    if given.is_applied:
                        self._stop = stop
                    return
        yield NumberReservation(numbers)

    async def last(self) -> int:
        """Return a number that is not below any number that was given, without the first digit."""
        return _decode_counter(await self._zookeeper.get(COUNTER))[0]

    async def skip(self, number: int, attempts_max: int) -> None:
        """
        Give no number up to ``number``, without the first digit.

        :raises InvalidInput: it has too many digits.
        """
        if number >= _NUMBER_LIMIT:
            raise InvalidInput(f"{self._zookeeper.shown_url} cannot count to {number + 1}")
        for _ in range(attempts_max):
            first, version = _decode_counter(await self._zookeeper.get(COUNTER))
            if first > number:
                break
            data = msgspec.json.encode((COUNTER_FORMAT, number + 1))
            with contextlib.suppress(MultiFailed):
                await self._zookeeper.multi([SetNode(COUNTER, data, version)])
        else:
            raise Conflict(f"{self._zookeeper.shown_url}: other processes gave numbers during every attempt")
        # The rest of the own block is lower.
        self._next = self._stop = 0

    def _format(self, first: int, prefixes: Sequence[str]) -> list[str]:
        """Return numbers with 20 digits; the first digit spreads the records of a client that puts many."""
        written: list[str] = []
        for number, prefix in enumerate(prefixes, first):
            given = self._given.get(prefix) or 0
            self._given.put(prefix, given + 1)
            digit = FLAT_DIGIT if given < FLAT_MAX else SPREAD_DIGIT
            written.append(f"{digit}{number:0{_DIGITS - 1}d}")
        return written


class _AnyCounter(msgspec.Struct, array_like=True):
    format: int


class _Counter(_AnyCounter, array_like=True):
    first: int


def _decode_counter(node: Node | None) -> tuple[int, int]:
    """Return the first number that is not reserved, and the version of the counter's node."""
    if node is None:
        raise CorruptRecord(COUNTER, "its node", "the node is missing")
    try:
        form = msgspec.json.decode(node.data, type=_AnyCounter).format
        if form != COUNTER_FORMAT:
            raise UnknownFormat(COUNTER, form)
        return msgspec.json.decode(node.data, type=_Counter).first, node.stat.version
    except UNREADABLE as error:
        raise CorruptRecord(COUNTER, "its value", str(error)) from error


STORE = "/store"
STORE_FORMAT = 1


class _Store(msgspec.Struct):
    format: int
    identity: str


class _AnyStore(msgspec.Struct):
    format: int


async def open_root(zookeeper: ZooKeeperClient, new_identity: str) -> str:
    """
    Return the identity of a store; create an empty store, with ``new_identity``.

    :raises InvalidInput: the chroot contains nodes of another program; they were left unchanged.
    :raises UnknownFormat: the store was created by a later release.
    """
    found = await zookeeper.get(STORE)
    if found is None and await _is_free(zookeeper):
        made = CreateNode(STORE, msgspec.json.encode(_Store(STORE_FORMAT, new_identity)))
        # One multi, so that no crash leaves a partial store. The next opening would mistake a partial store for that of
        # another program. If two clients create it at the same time, the first one's identity is stored.
        with contextlib.suppress(MultiFailed):
            roots = map(CreateNode, (RECORDS, INDEXES, LIVENESS, CHUNKS))
            await zookeeper.multi([made, *roots, CreateNode(COUNTER, INITIAL_COUNTER)])
    # Another client may have created it since the first read.
    found = found or await zookeeper.get(STORE)
    if found is None:
        raise InvalidInput(
            f"{zookeeper.shown_url} contains nodes of another program; name an unused chroot below it, as in"
            " zookeeper://host:2181/txnframework"
        )
    return _decode_store(found).identity


async def _is_free(zookeeper: ZooKeeperClient) -> bool:
    """Return whether the chroot is empty; the root may contain ZooKeeper's own node."""
    own = {"zookeeper"} if zookeeper.full("/") == "/" else set[str]()
    return own.issuperset(await zookeeper.children("/") or ())


async def take_identity(zookeeper: ZooKeeperClient, identity: str, attempts_max: int) -> None:
    """Replace the identity of a store."""
    for _ in range(attempts_max):
        found = await zookeeper.get(STORE)
        _decode_store(found)
        assert found is not None
        data = msgspec.json.encode(_Store(STORE_FORMAT, identity))
        with contextlib.suppress(MultiFailed):
            await zookeeper.multi([SetNode(STORE, data, found.stat.version)])
            return
    raise Conflict(f"{zookeeper.shown_url}: another process changed the identity of the store during every attempt")


def _decode_store(node: Node | None) -> _Store:
    if node is None:
        raise CorruptRecord(STORE, "its node", "the node is missing")
    try:
        form = msgspec.json.decode(node.data, type=_AnyStore).format
        if form != STORE_FORMAT:
            raise UnknownFormat("the store", form)
        return msgspec.json.decode(node.data, type=_Store)
    except UNREADABLE as error:
        raise CorruptRecord(STORE, "its value", str(error)) from error
