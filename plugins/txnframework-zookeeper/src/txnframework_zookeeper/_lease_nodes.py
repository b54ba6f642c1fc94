"""The node of a lease: a record like any other, but ephemeral, so that it goes with the session that made it."""

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
    """What the record of a lease says."""

    format: int = FORMAT
    holder: str
    session: str


@dataclass(frozen=True, slots=True)
class Standing:
    """
    A lease that somebody has.

    ``fencing`` is the number of the transaction that made the node, which is the record's version as well: it only
    grows, for as long as there is the ensemble.
    """

    key: Key
    fencing: int
    holder: str
    session_id: int
    token: str


class LeaseNodes:
    """Makes, finds and removes the nodes of leases."""

    def __init__(self, zookeeper: ZooKeeper, reaping: Reaping, environment: Environment, attempts_max: int) -> None:
        self._environment = environment
        self._zookeeper = zookeeper
        self._reaping = reaping
        self._attempts_max = attempts_max

    async def make(self, name: str, holder: str, session: str) -> Standing | None:
        """
        Take a lease that nobody has; None: somebody has it.

        :raises OutcomeUnknown: the reply was lost; it may stand for as long as the session lives.
        """
        key = lease_key(name)
        node = node_of(key)
        document = LeaseDocument(holder=holder, session=session)
        token = f"{self._environment.random_bits(64):016x}"
        data = encode_node(msgspec.json.encode(document), None, (), token)
        life = life_node(token)
        # Written as well, because ZooKeeper tells the number of a multi for what it writes alone.
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
                # Others made a node, or removed one that had become empty.
                continue
            return Standing(key, zxid, holder, session_id, token)
        raise Unavailable(f"{self._zookeeper.shown_url}: {key.path} was changed by others {self._attempts_max} times")

    async def find(self, name: str) -> Standing | None:
        """Return who has a lease, None: nobody."""
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
        Remove the node of a lease of any session, if it is still the one with this number.

        :raises OutcomeUnknown: the reply was lost.
        """
        found = await self.find(name)
        if found is None or found.fencing != fencing:
            return
        node = node_of(found.key)
        try:
            # The second node is that of this very lease: where another one was made meanwhile, nothing is removed.
            ops = DeleteNode(node), DeleteNode(life_node(found.token))
            await self._zookeeper.multi(ops, self._zookeeper.link.session_id)
        except MultiFailed:
            return
        self._reaping.note(node[: node.rfind("/")])

    async def remove(self, name: str, standing: Standing) -> None:
        """
        Remove the node of a lease of the session that goes on, if it is still there.

        :raises OutcomeUnknown: the reply was lost.
        """
        node = node_of(standing.key)
        found = await self.find(name)
        if found is None or (found.fencing, found.session_id) != (standing.fencing, standing.session_id):
            return
        try:
            # In this session or not at all: after its end the node of another holder may stand here.
            ops = DeleteNode(node), DeleteNode(life_node(standing.token))
            await self._zookeeper.multi(ops, standing.session_id)
        except MultiFailed:
            return
        self._reaping.note(node[: node.rfind("/")])
