"""Ledgers beside a topic are removed with it, and never with another topic of its name."""

from __future__ import annotations

from typing import cast

from txnframework.interfaces import ILedgerStore, IMetadataStore
from txnframework.model import Expect, Put, TopicName
from txnframework.model.layout import to_record
from txnframework.model.layout_changes import create_layout, deleted, removed
from txnframework.model.paths import topic_key
from txnframework.model.records import encode
from txnframework.testing import VirtualEnvironment
from txnframework_legacy.ledger_names import KINDS, delete_topic_ledgers, ledger_name, parse_ledger_name
from txnframework_memory.space import MemorySpace

ORDERS = "persistent://public/default/orders"
OTHER = "persistent://public/default/orders-2"


async def test_what_belongs_to_ended_topics_goes() -> None:
    """Ledgers of deleted topics are removed, in any life; those of the present topic and of others remain."""
    space = MemorySpace(VirtualEnvironment())
    ledgers = cast(ILedgerStore, await space.open_ledgers())
    store = cast(IMetadataStore, await space.open_metadata())

    async def left() -> list[str]:
        return [name for kind in KINDS for name in await ledgers.list_names(f"{kind}:", "", 1_000)]

    topic = TopicName.parse(ORDERS)
    first = create_layout(topic, 1)
    second = create_layout(topic, 1, removed(deleted(first)))
    names = [ledger_name(KINDS[0], ORDERS, life, f"{number:03}") for life in (1, 2) for number in range(150)]
    names += [ledger_name(kind, ORDERS, life) for kind in KINDS[1:] for life in (1, 2)]
    for name in (*names, other := ledger_name(KINDS[0], OTHER, 1)):
        await ledgers.create(name)
    await store.put(Put(topic_key(topic), encode(to_record(first)), Expect.ABSENT))
    await delete_topic_ledgers(store, ledgers, ORDERS)
    assert len(await left()) == 307
    await store.put(Put(topic_key(topic), encode(to_record(second)), Expect.ANY))
    await delete_topic_ledgers(store, ledgers, ORDERS)  # by a process that was paused while it deleted the first
    assert {*await left()} == {other, *(name for name in names if parse_ledger_name(name)[1] == 2)}
    await store.put(Put(topic_key(topic), encode(to_record(deleted(second))), Expect.ANY))
    await delete_topic_ledgers(store, ledgers, ORDERS)
    assert await left() == [other]
    segment = "segment://public/default/orders/0000-ffff-0"
    await ledgers.create(ledger_name(KINDS[0], segment, 1))
    await delete_topic_ledgers(store, ledgers, segment)  # its name never returns
    assert await left() == [other]
