"""The node of a lease: an ordinary record whose node is ephemeral, so that it is deleted with its session."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec

from txnframework.environment import Environment
from txnframework.errors import CorruptRecord, Unavailable, UnknownFormat
from txnframework.model import Key
from txnframework.model.paths import lease_key
from txnframework.model.records import UNREADABLE
from txnframework_zookeeper._known import ancestors, make_ahead
from txnframework_zookeeper._reaping import Reaping
from txnframework_zookeeper.connection._requests import CreateNode, DeleteNode, MultiFailed, SetNode
from txnframework_zookeeper.connection._zookeeper import ZooKeeper
from txnframework_zookeeper.tree._layout import node_of, partition_mark
from txnframework_zookeeper.tree._lives import life_node
from txnframework_zookeeper.tree._records import decode_node, encode_node

FORMAT = 1


class LeaseDocument(msgspec.Struct, kw_only=True):
    """The content of a lease's record."""

    format: int = FORMAT
    holder: str
    session: str


@dataclass(frozen=True, slots=True)
class Standing:
    """
    A lease that is held.

    ``fencing`` is the number of the transaction that created the node, and also the record's version. It only grows,
    over the whole life of the ensemble.
    """

    key: Key
    fencing: int
    holder: str
    session_id: int
    token: str


class LeaseNodes:
    """Creates, finds and deletes the nodes of leases."""

    def __init__(self, zookeeper: ZooKeeper, reaping: Reaping, environment: Environment, attempts_max: int) -> None:
        self._environment = environment
        self._zookeeper = zookeeper
        self._reaping = reaping
        self._attempts_max = attempts_max

    async def make(self, name: str, holder: str, session: str) -> Standing | None:
        """
        Acquire a lease that is not held; None: it is held.

        :raises OutcomeUnknown: the reply was lost; the lease may be held for as long as the session lives.
        """
        key = lease_key(name)
        node = node_of(key)
        document = LeaseDocument(holder=holder, session=session)
        token = f"{self._environment.random_bits(64):016x}"
        data = encode_node(msgspec.json.encode(document), None, (), token)
        life = life_node(token)
        # The life node is also written, because ZooKeeper returns the transaction number of a multi only for writes.
        made = CreateNode(node, data, is_ephemeral=True), CreateNode(life, is_ephemeral=True), SetNode(life, b"")
        for _ in range(self._attempts_max):
            parents = ancestors(node)
            stats = await asyncio.gather(*map(self._zookeeper.exists, (*parents, node)))
            if stats[-1] is not None:
                return None
            missing = [parent for parent, stat in zip(parents, stats, strict=False) if stat is None]
            session_id = self._zookeeper.link.session_id
            try:
                rest = await make_ahead(self._zookeeper, missing, self._reaping.note)
                zxid = await self._zookeeper.multi((*map(CreateNode, rest), *made), session_id)
            except MultiFailed:
                # Another client created a node, or deleted one that had become empty.
                continue
            return Standing(key, zxid, holder, session_id, token)
        raise Unavailable(f"{self._zookeeper.shown_url}: {key.path} was changed by others {self._attempts_max} times")

    async def find(self, name: str) -> Standing | None:
        """Return the current holder of a lease, or None."""
        key = lease_key(name)
        node = await self._zookeeper.get(node_of(key))
        if node is None:
            return None
        record, standing = decode_node(key.path, partition_mark(key.path, key.partition), node)
        try:
            document = msgspec.json.decode(record.value, type=LeaseDocument)
        except UNREADABLE as error:
            raise CorruptRecord(key.path, "its value", str(error)) from error
        if document.format != FORMAT:
            raise UnknownFormat(f"lease {name}", document.format)
        return Standing(key, node.stat.czxid, document.holder, node.stat.ephemeralOwner, standing.token)

    async def end(self, name: str, fencing: int) -> None:
        """
        Delete the node of a lease of any session, if it still has this fencing number.

        :raises OutcomeUnknown: the reply was lost.
        """
        found = await self.find(name)
        if found is None or found.fencing != fencing:
            return
        node = node_of(found.key)
        try:
            # The second node belongs to this very lease: if another lease was acquired meanwhile, nothing is deleted.
            ops = DeleteNode(node), DeleteNode(life_node(found.token))
            await self._zookeeper.multi(ops, self._zookeeper.link.session_id)
        except MultiFailed:
            return
        self._reaping.note(node[: node.rfind("/")])

    async def remove(self, name: str, standing: Standing) -> None:
        """
        Delete the node of a lease of the current session, if it still exists.

        :raises OutcomeUnknown: the reply was lost.
        """
        node = node_of(standing.key)
        found = await self.find(name)
        if found is None or (found.fencing, found.session_id) != (standing.fencing, standing.session_id):
            return
        try:
            # Only in this session: after its end the path may hold the node of another holder.
            ops = DeleteNode(node), DeleteNode(life_node(standing.token))
            await self._zookeeper.multi(ops, standing.session_id)
        except MultiFailed:
            return
        self._reaping.note(node[: node.rfind("/")])
