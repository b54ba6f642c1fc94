"""What people pass to a client: text where a value would do, and one sentence where it cannot be used."""

from __future__ import annotations

from typing import Any

import pytest

import txnframework
from txnframework import Isolation, MessageID, State, TransactionHasFailedOperations
from txnframework.errors import InvalidInput


async def test_isolation_may_be_text_and_is_never_ignored(memory: Any) -> None:
    """An unknown isolation level is refused, instead of silently reading something else."""
    async with memory.open() as client:
        await client.create_topic("t")
        async with await client.producer("t") as producer, client.transaction() as txn:
            await producer.send(b"undecided", txn=txn)
            for isolation in ("read_uncommitted", Isolation.READ_UNCOMMITTED):
                assert await memory.read(client, "t", isolation=isolation) == [b"undecided"]
            assert await memory.read(client, "t", isolation="read_committed") == []
            with pytest.raises(InvalidInput, match="'read_committed' or 'read_uncommitted', not 'bogus'"):
                await client.reader("t", isolation="bogus")


async def test_a_transaction_id_travels_as_text(memory: Any) -> None:
    """Another process can use ``str`` of a transaction id to join, query and end the transaction."""
    async with memory.open() as client:
        await client.create_topic("t")
        async with await client.producer("t") as producer:
            txn = client.transaction()
            await txn.begin()
            async with client.join(str(txn.id)) as joined:
                await producer.send(b"x", txn=joined)
            assert await client.outcome(str(txn.id)) is State.OPEN
            await client.commit(str(txn.id), [joined.branch])
            assert await client.outcome(txn.id) is State.COMMITTED
        with pytest.raises(InvalidInput, match="'abc' is not a transaction id"):
            await client.outcome("abc")


async def test_what_failed_first_is_the_cause_of_the_failed_commit(memory: Any) -> None:
    """If a program ignores a failed send, the failed commit has that error as its cause."""
    async with memory.open(client={"message_bytes_max": 10}) as client:
        await client.create_topic("t")
        async with await client.producer("t") as producer:
            txn = client.transaction()
            await txn.begin()
            with pytest.raises(InvalidInput) as failed:
                await producer.send(b"x" * 11, txn=txn)
            with pytest.raises(TransactionHasFailedOperations) as refused:
                await txn.commit()
            assert refused.value.__cause__ is failed.value


async def test_segments_are_found_by_the_topics_name(memory: Any) -> None:
    """Splitting and merging take segment ids, and a consumer may take one segment: the layout names them."""
    async with memory.open() as client:
        await client.create_topic("t", segments=2)
        layout = await client.layout("t")
        assert [segment.id for segment in layout.active()] == [0, 1]
        assert str(layout.name_of(1)) == "segment://public/default/t/8000-ffff-1"
        await client.split("t", layout.active()[0].id)
        assert [segment.id for segment in (await client.layout("t")).active()] == [2, 3, 1]


async def test_an_id_that_no_message_has(memory: Any) -> None:
    """Reading from or seeking to an invalid id is refused, instead of silently skipping everything or nothing."""
    async with memory.open() as client:
        await client.create_topic("t")
        await client.create_topic("other")
        async with await client.producer("t") as producer, await client.producer("other") as others:
            first, elsewhere = await producer.send(b"first"), await others.send(b"elsewhere")
            await producer.send(b"second")
        never = MessageID.parse(f"{first.segment}@999:5:0")
        assert await memory.read(client, "t", start=first) == [b"second"]
        with pytest.raises(InvalidInput, match=r"there is no message at segment.*@999:5:0"):
            await client.reader("t", start=never)
        with pytest.raises(InvalidInput, match=r"is not the id of a message of topic://public/default/t$"):
            await client.reader("t", start=elsewhere)
        async with await client.consumer("t", "billing", start="earliest") as consumer:
            for seek in (consumer.seek, lambda to: client.seek("t", "billing", to)):
                with pytest.raises(InvalidInput, match="is not among the segments of topic://public/default/t "):
                    await seek(elsewhere)
            received = await consumer.receive(timeout_ms=60_000)
            with pytest.raises(InvalidInput, match="not a message: name its id"):
                await consumer.seek(received)
            with pytest.raises(InvalidInput, match=r"not a list; several are given one by one, as in ack\(\*mess"):
                await consumer.ack([received])


async def test_a_transactions_id_in_place_of_it(memory: Any) -> None:
    """Where a transaction is needed, an id is refused, and the error says how to get a transaction from it."""
    async with memory.open() as client:
        await client.create_topic("t")
        async with (
            await client.producer("t") as producer,
            await client.consumer("t", "billing") as consumer,
            client.transaction() as txn,
        ):
            sent = await producer.send(b"x")
            for asking in (producer.send(b"y", txn=str(txn.id)), consumer.ack(sent, txn=str(txn.id))):
                with pytest.raises(InvalidInput, match=r"client\.join\(\) returned; this is of the type str"):
                    await asking


def test_a_configuration_that_is_none() -> None:
    with pytest.raises(InvalidInput, match="invalid configuration 5: expected the path of a file"):
        txnframework.config.load_config(5)  # type: ignore[arg-type]


async def test_a_number_in_place_of_a_rule_for_dead_letters(memory: Any) -> None:
    """A bare number is refused, because it does not say what it counts."""
    async with memory.open() as client:
        await client.create_topic("t")
        with pytest.raises(InvalidInput, match=r"dead_letter is a rule such as DeadLetter\(3\), not 5$"):
            await client.consumer("t", "s", dead_letter=5)
