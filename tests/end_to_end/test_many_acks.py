"""Very many messages acknowledged one by one in one transaction: records become large, and nothing is lost."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest

from txnframework.errors import ReceiveTimeout
from txnframework.model import KeyRange

if TYPE_CHECKING:
    from conftest import Stores

FEW, MANY = 1_000, 50_000
CURSORS = KeyRange("/cursor/", "/cursor0")
REQUEST_BYTES_MAX = 1_048_575
"""jute.maxbuffer, of which ZooKeeper takes no more in one request."""
SENT_TOGETHER = 5_000
ROOM: dict[str, object] = {"unacknowledged_messages_max": 3 * MANY, "deleted_ranges_max": 3 * MANY}
TIMEOUT_MS = 600_000
# One entry for each message, so that each acknowledgment is a range of its own.
SINGLE: dict[str, object] = {"entry_messages_max": 1}


@pytest.mark.parametrize("many", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
async def test_every_other_of_many_messages_acknowledged_in_one_transaction(zookeeper: Stores, many: int) -> None:
    """The acks and the cursor survive exactly: what was acknowledged never comes again, everything else does."""
    # The loop is silent while it decodes and encodes megabytes. With few messages less is large already.
    in_record_max = REQUEST_BYTES_MAX // 4 if many == MANY else 1_000
    zookeeper.options = {"session_ttl_ms": 60_000, "value_in_record_bytes_max": in_record_max}
    zookeeper.ledger_url = f"memory://{secrets.token_hex(8)}"

    kept = await acknowledge_every_other(zookeeper, many)
    async with zookeeper.open(subscriptions=ROOM) as client:
        consumer = await client.consumer("many", "work", type="shared")
        found: list[bytes] = []
        while len(found) < many:
            found += [one.value for one in await consumer.receive_many(messages_max=1_000, timeout_ms=60_000)]
        assert sorted(found, key=int) == kept
        (cursor,) = (await client.host.metadata.scan(CURSORS, 2)).records
        assert len(cursor.value) > (REQUEST_BYTES_MAX if many == MANY else in_record_max)
        with pytest.raises(ReceiveTimeout):
            await consumer.receive(timeout_ms=1_000)
        await consumer.close()


async def acknowledge_every_other(stores: Stores, many: int) -> list[bytes]:
    """Return the values of what was not acknowledged."""
    async with stores.open(subscriptions=ROOM, client=SINGLE) as client:
        await client.create_topic("many")
        consumer = await client.consumer("many", "work", type="shared", start="earliest")
        values = [str(number).encode() for number in range(2 * many)]
        producer = await client.producer("many")
        for at in range(0, len(values), SENT_TOGETHER):
            await producer.send_many(values[at : at + SENT_TOGETHER])
        received = []
        while len(received) < len(values):
            received += await consumer.receive_many(messages_max=1_000, timeout_ms=60_000)
        acknowledged = [message for message in received if int(message.value) % 2]
        async with client.transaction(timeout_ms=TIMEOUT_MS) as txn:
            await consumer.ack(*acknowledged, txn=txn)
        await consumer.close()
    return values[::2]
