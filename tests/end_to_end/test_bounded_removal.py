"""Records of a large transaction are removed from ZooKeeper in multis of bounded size; a crash may come between."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from txnframework.errors import ReceiveTimeout
from txnframework.model import IndexRange, Key, KeyRange
from txnframework.model.ids import TxnID
from txnframework.model.indexes import ACKS_BY_SEGMENT_SUBSCRIPTION
from txnframework.model.paths import operations_range

if TYPE_CHECKING:
    from conftest import Stores

    from txnframework import Client

MESSAGES = 110
"""Each acknowledged by an operation of its own."""
REMOVED_TOGETHER_MAX = 100
OPERATIONS = "/records/txn-op:"
EVERY_ACK = IndexRange(ACKS_BY_SEGMENT_SUBSCRIPTION, b"", b"\xff")
SECTIONS: dict[str, dict[str, object]] = {
    "transactions": {"sweep": False},
    "client": {"entry_messages_max": 1},
    "pending_acks": {"metadata": {"acks_per_record_max": 1}},
}
SOON_MS = 500
SETTLED_WITHIN_S = 60


class Dying:
    """Records how many operations each multi removes, and blocks all requests after this number of multis."""

    def __init__(self, client: Client, multis_max: int) -> None:
        self.removed: list[int] = []
        self.has_died = asyncio.Event()
        store: Any = client.host.metadata
        self._session = store.zookeeper.session
        self._submit = self._session.submit
        self._multis_max = multis_max
        self._session.submit = self

    def __call__(self, request: Any, reply: Any, session_id: int | None = None) -> None:
        """Forward a request, unless requests are blocked."""
        removed = sum(
            type(op).__name__ == "DeleteNode" and op.path.startswith(OPERATIONS) and "=" in op.path
            for op in getattr(request, "ops", ())
        )
        if removed and len(self.removed) == self._multis_max:
            self.has_died.set()
            return
        if removed:
            self.removed.append(removed)
        self._submit(request, reply, session_id)

    def leave(self) -> None:
        """Unblock all requests, so that the client can be closed."""
        self._session.submit = self._submit


async def records_of(client: Client, target: KeyRange | IndexRange) -> set[Key]:
    """Return which records there are in a range, read page by page."""
    found: set[Key] = set()
    left: KeyRange | IndexRange | None = target
    while left is not None:
        scan: Any = client.host.metadata.scan if isinstance(left, KeyRange) else client.host.metadata.scan_index
        page = await scan(left, MESSAGES)
        found |= {record.key for record in page.records}
        left = page.resume
    return found


async def end(stores: Stores, *, commits: bool) -> TxnID:
    """Acknowledge every message in one transaction and end it, and die after the first multi of its removal."""
    async with stores.open(**SECTIONS) as client:
        await client.create_topic("t")
        await (await client.producer("t")).send_many([b"%d" % number for number in range(MESSAGES)])
        consumer = await client.consumer("t", "s", start="earliest")
        client.host.own_transactions.settles = False
        txn = client.transaction()
        await txn.begin()
        for _ in range(MESSAGES):
            await consumer.ack(await consumer.receive(), txn=txn)
        await (txn.commit() if commits else txn.abort())
        coordinator = await client.host.coordinator()
        dying = Dying(client, 1)
        settling = asyncio.ensure_future(coordinator.settle(txn.id))
        async with asyncio.timeout(SETTLED_WITHIN_S):
            await dying.has_died.wait()
        settling.cancel()
        await asyncio.gather(settling, return_exceptions=True)
        dying.leave()
        assert dying.removed == [REMOVED_TOGETHER_MAX]
        return txn.id


@pytest.mark.parametrize("commits", [True, False], ids=["committed", "aborted"])
async def test_deletes_go_in_bounded_multis_and_a_crash_between_two_tears_nothing(
    zookeeper: Stores, commits: bool
) -> None:
    """Each record is removed with its index entry.

    The outcome is unchanged, and the next settlement finishes the removal.
    """
    txn_id = await end(zookeeper, commits=commits)
    async with zookeeper.open(**SECTIONS) as client:
        left = await records_of(client, operations_range(txn_id))
        assert len(left) == MESSAGES - REMOVED_TOGETHER_MAX
        assert await records_of(client, EVERY_ACK) == left
        assert (await client.lag("t", "s")).messages == (0 if commits else MESSAGES)
        removal = Dying(client, MESSAGES)
        await (await client.host.coordinator()).settle(txn_id)
        assert removal.removed == [len(left)]
        assert await records_of(client, operations_range(txn_id)) == set()
        assert await records_of(client, EVERY_ACK) == set()
        consumer = await client.consumer("t", "s")
        if commits:
            with pytest.raises(ReceiveTimeout):
                await consumer.receive(timeout_ms=SOON_MS)
        else:
            assert len({(await consumer.receive()).value for _ in range(MESSAGES)}) == MESSAGES
