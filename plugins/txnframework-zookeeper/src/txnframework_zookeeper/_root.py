"""The root of a store: one node with its identity and the format of everything below."""

from __future__ import annotations

import contextlib

import msgspec

from txnframework.errors import Conflict, CorruptRecord, InvalidInput, UnknownFormat
from txnframework.model.records import UNREADABLE
from txnframework_zookeeper._numbers import FIRST, NUMBERS
from txnframework_zookeeper.connection._requests import CreateNode, MultiFailed, Node, SetNode
from txnframework_zookeeper.connection._zookeeper import ZooKeeper
from txnframework_zookeeper.tree._chunks import CHUNKS
from txnframework_zookeeper.tree._index import INDEXES
from txnframework_zookeeper.tree._layout import RECORDS
from txnframework_zookeeper.tree._lives import LIVES

STORE = "/store"
FORMAT = 1


class _Store(msgspec.Struct):
    format: int
    identity: str


class _AnyStore(msgspec.Struct):
    format: int


async def open_root(zookeeper: ZooKeeper, new_identity: str) -> str:
    """
    Return the identity of a store; create an empty store, with ``new_identity``.

    :raises InvalidInput: the chroot contains nodes of another program; they were left unchanged.
    :raises UnknownFormat: the store was created by a later release.
    """
    found = await zookeeper.get(STORE)
    if found is None and await _is_free(zookeeper):
        made = CreateNode(STORE, msgspec.json.encode(_Store(FORMAT, new_identity)))
        # One multi, so that no crash leaves a partial store, which the next opening would take for another program's.
        # If two clients create it at the same time, the first one's identity is stored.
        with contextlib.suppress(MultiFailed):
            roots = map(CreateNode, (RECORDS, INDEXES, LIVES, CHUNKS))
            await zookeeper.multi([made, *roots, CreateNode(NUMBERS, FIRST)])
    # Another client may have created it since the first read.
    found = found or await zookeeper.get(STORE)
    if found is None:
        raise InvalidInput(
            f"{zookeeper.shown_url} names a place where another program has nodes; name a chroot of its own below it,"
            " as in zookeeper://host:2181/txnframework"
        )
    return _decode(found).identity


async def _is_free(zookeeper: ZooKeeper) -> bool:
    """Return whether the chroot is empty; the root may contain ZooKeeper's own node."""
    own = {"zookeeper"} if zookeeper.full("/") == "/" else set[str]()
    return own.issuperset(await zookeeper.children("/") or ())


async def take_identity(zookeeper: ZooKeeper, identity: str, attempts_max: int) -> None:
    """Replace the identity of a store."""
    for _ in range(attempts_max):
        found = await zookeeper.get(STORE)
        _decode(found)
        assert found is not None
        data = msgspec.json.encode(_Store(FORMAT, identity))
        with contextlib.suppress(MultiFailed):
            await zookeeper.multi([SetNode(STORE, data, found.stat.version)])
            return
    raise Conflict(f"{zookeeper.shown_url}: others give the store identities at the same time")


def _decode(node: Node | None) -> _Store:
    if node is None:
        raise CorruptRecord(STORE, "its node", "somebody removed it")
    try:
        form = msgspec.json.decode(node.data, type=_AnyStore).format
        if form != FORMAT:
            raise UnknownFormat("the store", form)
        return msgspec.json.decode(node.data, type=_Store)
    except UNREADABLE as error:
        raise CorruptRecord(STORE, "its value", str(error)) from error
