"""The epochs of topics: they grow with each producer that gets exclusive access."""

from __future__ import annotations

from txnframework.client import Client
from txnframework.errors import OutcomeUnknown, VersionMismatch
from txnframework.model.metadata import Expect, Key, Put, Record
from txnframework.model.names import TopicName
from txnframework.model.paths import escape
from txnframework.model.records import Document, decode, encode


class _Epoch(Document):
    """``life``: the life of the topic that the epoch belongs to."""

    life: int
    epoch: int


class TopicEpochs:
    """
    Stores the last epoch of each topic, so that a producer that was replaced is recognised by any gateway.

    A topic has the name and the life that it was created with, so a migration keeps its epoch.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def last(self, topic: TopicName, life: int) -> int:
        """Return the last epoch of a topic; 0: no producer had exclusive access."""
        return _epoch_of(await self._client.host.metadata.get(_key(topic)), life)

    async def next(self, topic: TopicName, life: int, asked: int | None) -> int:
        """
        Return the epoch of a producer that gets exclusive access; ``asked`` is the one that it has from before.

        It keeps its epoch if no other producer had access since.
        """
        store = self._client.host.metadata
        while True:
            record = await store.get(_key(topic))
            last = _epoch_of(record, life)
            if asked is not None and asked >= last > 0:
                return last
            value = encode(_Epoch(life, last + 1))
            try:
                await store.put(Put(_key(topic), value, Expect.ABSENT if record is None else record.version))
            except (VersionMismatch, OutcomeUnknown):
                continue  # an epoch that is skipped is harmless
            return last + 1


def _key(topic: TopicName) -> Key:
    return Key(f"/pulsar-epoch/{escape(str(topic))}", str(topic))


def _epoch_of(record: Record | None, life: int) -> int:
    if record is None:
        return 0
    found = decode(_Epoch, record)
    return found.epoch if found.life == life else 0
