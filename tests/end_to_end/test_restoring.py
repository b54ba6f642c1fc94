"""After a restore, decided transactions remain, undecided ones are aborted, and mixed pairs are refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from restored_pair import RETENTION_MS, Pair

from txnframework import Client, DeadLetter, State
from txnframework.broker import DurableCounts, Restored, RestoreReport, RestoreRequest
from txnframework.broker.restore.reconciliation import Reconciliation
from txnframework.errors import InvalidInput, StoreMismatch, TransactionNotFound, Unavailable, VersionMismatch
from txnframework.model import Action, End, Key, paths, records

if TYPE_CHECKING:
    from conftest import Stores


@pytest.fixture
def pair(sqlite: Stores, tmp_path: Path) -> Pair:
    return Pair(sqlite, tmp_path)


async def sent(client: Client, text: bytes, commit: bool = True) -> Any:
    """Send a message in a transaction; return the transaction, ended."""
    producer = await client.producer("orders")
    txn = client.transaction()
    await txn.begin()
    await producer.send(text, txn=txn)
    await (txn.commit() if commit else txn.abort())
    await producer.close()
    return txn


async def left_open(client: Client, text: bytes) -> Any:
    """Send a message in a transaction that outlives this client."""
    producer = await client.producer("orders")
    txn = client.transaction(outlives_client=True, timeout_ms=3_600_000)
    await txn.begin()
    await producer.send(text, txn=txn)
    return txn


async def read(client: Client) -> list[bytes]:
    """Return all that may be read."""
    async with await client.reader("orders") as reader:
        return [message.value async for message in reader]


async def abort_records(client: Client) -> tuple[Any, ...]:
    """Return the records of aborted branches."""
    name = str((await client.layout("orders")).name_of(0))
    return (await client.host.metadata.scan(paths.abort_records_range(name), 10)).records


async def collected(client: Client, pair: Pair) -> None:
    """Let the records of ended transactions be collected."""
    await pair.clock.advance(2 * RETENTION_MS)
    coordinator = await client.host.coordinator()
    for _ in range(3):
        await coordinator.collect(pair.clock.now_ms())


async def test_an_older_metadata_store(pair: Pair) -> None:
    """What was committed before the backup stays, forgotten or not; transactions that were open then, or began later,
    are aborted.

    Also a transaction whose number was reserved before the backup, which opening alone would take for a collected one.
    """

    async def before(client: Client) -> Any:
        await client.create_topic("orders")
        gone = await sent(client, b"committed and forgotten")
        await sent(client, b"aborted and forgotten", commit=False)
        await collected(client, pair)
        with pytest.raises(TransactionNotFound):
            await client.outcome(gone.id)
        await sent(client, b"committed")
        await sent(client, b"aborted", commit=False)
        txn = await left_open(client, b"committed later")
        taken_ms = pair.back_up("metadata")
        await pair.clock.advance(10)
        await txn.commit()
        await sent(client, b"lost, its number reserved before")
        await (await client.producer("orders")).send(b"plain")
        return taken_ms

    async def after(client: Client) -> None:
        await client.host.sweeps.sweep()
        assert await read(client) == [b"committed and forgotten", b"committed", b"plain"]
        assert (await sent(client, b"new")).id.number > 1_000_000
        assert await read(client) == [b"committed and forgotten", b"committed", b"plain", b"new"]
        await collected(client, pair)
        assert await read(client) == [b"committed and forgotten", b"committed", b"plain", b"new"]

    taken_ms = await pair.play(before)
    pair.put_back("metadata")
    with pytest.raises(InvalidInput, match="time at which the backup"):
        await pair.restore(RestoreRequest(Restored.METADATA))
    planned = await pair.restore(RestoreRequest(Restored.METADATA, taken_ms, dry_run=True))
    assert planned.counts.transactions_aborted == 1
    assert planned.counts.branches_aborted >= 1
    done = await pair.restore(RestoreRequest(Restored.METADATA, taken_ms))
    assert done.metadata_identity == done.ledger_identity == planned.metadata_identity
    assert done.identity != done.metadata_identity
    await pair.play(after)


@pytest.mark.parametrize("blocks", [0, 1])
async def test_the_other_store_is_named(pair: Pair, blocks: int) -> None:
    """If the wrong store is named as the older one, the restore is refused: aborted messages would be shown."""

    async def before(client: Client) -> Any:
        await client.create_topic("orders")
        await sent(client, b"committed")
        taken_ms = pair.back_up("metadata")
        for _ in range(blocks * 1_000):  # so that numbers are used which were not reserved then
            async with client.transaction():
                pass
        await sent(client, b"aborted", commit=False)
        return taken_ms

    async def after(client: Client) -> None:
        assert await read(client) == [b"committed"]

    taken_ms = await pair.play(before)
    pair.put_back("metadata")
    for dry_run in (True, False):
        with pytest.raises(InvalidInput, match="the metadata store is the older one"):
            await pair.restore(RestoreRequest(Restored.LEDGER, dry_run=dry_run))
    await pair.restore(RestoreRequest(Restored.METADATA, taken_ms))
    await pair.play(after)


async def test_an_older_ledger_store(pair: Pair) -> None:
    """Cursors, abort records and intents end where the ledger ends, and what comes there next is delivered."""

    async def before(client: Client) -> Any:
        await client.create_topic("orders")
        await sent(client, b"kept")
        await sent(client, b"hidden", commit=False)
        txn = await left_open(client, b"torn")
        pair.back_up("ledger")
        async with await client.consumer("orders", "billing", start="earliest") as consumer:
            producer = await client.producer("orders")
            for number in range(3):
                await sent(client, b"lost and aborted %d" % number, commit=False)
            await client.abort(txn.id)
            await producer.send(b"lost")
            await client.split("orders", 0)
            for number in range(16):
                await producer.send(b"lost in a child %d" % number)
            for _ in range(12):
                await consumer.ack(await consumer.receive(timeout_ms=60_000))
        return await left_open(client, b"lost and open")

    async def after(client: Client) -> None:
        await client.host.sweeps.sweep()
        assert await read(client) == [b"kept"]
        for text in (b"first", b"second"):
            await sent(client, text)
        async with await client.consumer("orders", "billing") as consumer:
            received = {(await consumer.receive(timeout_ms=60_000)).value for _ in range(2)}
            assert received == {b"first", b"second"}

    txn = await pair.play(before)
    pair.put_back("ledger")
    planned = await pair.restore(RestoreRequest(Restored.LEDGER, dry_run=True))
    assert planned.counts.cursors_moved >= 1
    assert planned.counts.segments_made == 2
    done = await pair.restore(RestoreRequest(Restored.LEDGER))
    assert done.counts.cursors_moved >= planned.counts.cursors_moved
    assert done.counts.intents_dropped >= 1
    await pair.play(after)

    async def outcome(client: Client) -> State:
        return await client.outcome(txn.id)

    assert await pair.play(outcome) is State.ABORTED


async def test_acknowledgments_of_what_is_lost_have_no_effect(pair: Pair) -> None:
    """Committed acks that had not reached the cursor are dropped, too: another message gets their position."""

    async def before(client: Client) -> None:
        await client.create_topic("orders")
        await sent(client, b"kept")
        pair.back_up("ledger")
        await sent(client, b"lost")
        txn = client.transaction(outlives_client=True)
        await txn.begin()
        async with await client.consumer("orders", "billing", start="earliest") as consumer:
            kept, lost = [await consumer.receive(timeout_ms=60_000) for _ in range(2)]
            await consumer.ack(kept)
            await consumer.ack(lost, txn=txn)
        await (await client.host.coordinator()).end(End(txn.id, Action.COMMIT, operator=True))

    async def after(client: Client) -> list[bytes]:
        async with await client.consumer("orders", "billing") as consumer:
            await sent(client, b"new")
            return [(await consumer.receive(timeout_ms=60_000)).value]

    await pair.play(before)
    pair.put_back("ledger")
    await pair.restore(RestoreRequest(Restored.LEDGER))
    assert await pair.play(after) == [b"new"]


async def test_presumed_deaths_of_what_is_lost_have_no_effect(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the record says nothing else: the message that comes next at the same position is delivered first."""
    rule = DeadLetter(redeliveries_max=1)

    async def before(client: Client) -> None:
        await client.create_topic("orders")
        await client.create_topic("orders-billing-DLQ")
        await client.subscribe("orders", "billing", start="earliest")
        pair.back_up("ledger")
        await (await client.producer("orders")).send(b"lost")

    async def die(client: Client) -> None:
        """Receive the message, and leave what a process leaves that was killed."""

        async def unavailable(*_: object) -> None:
            raise Unavailable("the process was killed")

        with monkeypatch.context() as patch:
            patch.setattr(DurableCounts, "end", unavailable)
            async with client.consumer("orders", "billing", dead_letter=rule) as consumer:
                await consumer.receive(timeout_ms=60_000)

    async def leave(client: Client) -> None:
        """Join and receive nothing; then only the presumed death is recorded."""
        await (await client.consumer("orders", "billing", dead_letter=rule)).close()
        key = paths.delivery_counts_key(str((await client.layout("orders")).name_of(0)), "billing")
        stored = await client.host.metadata.get(key)
        assert stored is not None
        found = records.decode(records.DeliveryCountsRecord, stored)
        assert (found.counts, found.handed_out, bool(found.presumed)) == ({}, [], True)

    async def after(client: Client) -> tuple[bytes | None, int]:
        await (await client.producer("orders")).send(b"new")
        async with client.consumer("orders", "billing", dead_letter=rule) as consumer:
            message = await consumer.receive(timeout_ms=60_000)
            return message.value, message.redelivery_count

    for scene in (before, die, die, leave):
        await pair.play(scene)
    pair.put_back("ledger")
    done = await pair.restore(RestoreRequest(Restored.LEDGER))
    assert done.counts.cursors_moved == 1
    assert await pair.play(after) == (b"new", 0)


async def test_stores_that_never_belonged_together(pair: Pair) -> None:
    """Unrelated stores are refused unless forced; then transactional messages are aborted, and others remain."""

    async def filled(client: Client) -> None:
        await client.create_topic("orders")
        await sent(client, b"of nobody knows which transaction")
        await (await client.producer("orders")).send(b"plain")

    other = f"sqlite:///{pair.directory}/other.db"
    await pair.play(filled)
    await pair.play(filled, metadata=other, ledger=f"sqlite:///{pair.directory}/others-ledger.db")
    request = RestoreRequest(Restored.LEDGER)
    with pytest.raises(StoreMismatch, match="created together"):
        await pair.restore(request, metadata=other)
    await pair.restore(RestoreRequest(Restored.LEDGER, forced=True), metadata=other)
    assert await pair.play(read, metadata=other) == [b"plain"]
    await pair.refused()


async def test_opening_is_refused_until_an_interrupted_restore_is_repeated(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted restore is finished by repeating it, under the identity that it chose first."""

    class Stopped(Exception):
        """The command was killed."""

    async def before(client: Client) -> int:
        await client.create_topic("orders")
        await sent(client, b"kept")
        taken_ms = pair.back_up("metadata")
        for number in range(3):
            await sent(client, b"lost %d" % number)
        return taken_ms

    taken_ms = await pair.play(before)
    pair.put_back("metadata")
    request = RestoreRequest(Restored.METADATA, taken_ms)
    steps = 0
    real = Reconciliation._write

    async def stop_at(self: Any, change: Any) -> None:
        nonlocal steps
        steps -= 1
        if not steps:
            raise Stopped
        await real(self, change)

    monkeypatch.setattr(Reconciliation, "_write", stop_at)
    for at in range(1, 100):
        steps = at
        try:
            done = await pair.restore(request)
        except Stopped:
            await pair.refused()
        else:
            break
    assert at > 3
    assert done.ledger_identity == done.identity
    assert await pair.play(read) == [b"kept"]


async def test_nobody_else_may_change_what_is_restored(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes by a running process during the restore are detected, and the command can be repeated."""
    await pair.play(lambda client: client.create_topic("orders"))
    await pair.play(lambda client: sent(client, b"one"))
    real = Reconciliation._write

    async def lost(self: Any, change: Any) -> None:
        async def loses() -> None:
            raise VersionMismatch(Key("/ids"), 1)

        await real(self, loses)

    monkeypatch.setattr(Reconciliation, "_write", lost)
    with pytest.raises(Unavailable, match="another process"):
        await pair.restore(RestoreRequest(Restored.LEDGER))
    monkeypatch.undo()
    await pair.restore(RestoreRequest(Restored.LEDGER))
    assert await pair.play(read) == [b"one"]


async def test_what_was_trimmed_and_returns_is_not_taken_for_committed(pair: Pair) -> None:
    """Abort records of trimmed messages were collected, so an older ledger store shows no transactional message
    that was trimmed.
    """

    async def before(client: Client) -> None:
        await client.create_topic("orders")
        segment = await client.host.segment(str((await client.layout("orders")).name_of(0)))
        await client.settle((await sent(client, b"aborted", commit=False)).id)
        await (await client.producer("orders")).send(b"plain")
        await sent(client, b"committed")
        await segment.ledger.roll()
        await sent(client, b"kept")
        await client.host.sweeps.sweep()
        pair.back_up("ledger")
        await segment.ledger.roll()
        await sent(client, b"lost")
        below = (await segment.ledger.ledgers(-1, 10))[1].ledger_id
        await segment.buffer.trim(below)
        await collected(client, pair)
        await pair.clock.advance(2 * 3_600_000)
        await segment.buffer.trim(below)
        assert not await abort_records(client)

    await pair.play(before)
    pair.put_back("ledger")
    await pair.restore(RestoreRequest(Restored.LEDGER))
    assert await pair.play(read) == [b"plain", b"kept"]
    await pair.play(lambda client: sent(client, b"new"))
    assert await pair.play(read) == [b"plain", b"kept", b"new"]
    await pair.play(lambda client: collected(client, pair))
    await pair.restore(RestoreRequest(Restored.LEDGER))
    assert await pair.play(read) == [b"plain", b"kept", b"new"]


async def test_a_backup_is_not_gone_back_to_twice(pair: Pair) -> None:
    """
    Repeated when it is done, the command would abort what was committed since and has been forgotten.

    It tells from its own record, and from what the metadata store knows.
    """

    async def before(client: Client) -> int:
        await client.create_topic("orders")
        taken_ms = pair.back_up("metadata")
        await pair.clock.advance(10)
        await sent(client, b"lost")
        return taken_ms

    async def since(client: Client) -> None:
        await sent(client, b"committed and forgotten")
        await collected(client, pair)

    taken_ms = await pair.play(before)
    pair.put_back("metadata")
    request = RestoreRequest(Restored.METADATA, taken_ms)
    await pair.restore(request)
    await pair.play(since)
    for later in (request, RestoreRequest(Restored.METADATA, taken_ms, dry_run=True)):
        with pytest.raises(InvalidInput, match="restored after"):
            await pair.restore(later)
    assert await pair.play(read) == [b"committed and forgotten"]


async def test_a_time_that_the_metadata_store_contradicts_is_refused(pair: Pair) -> None:
    """The metadata store knows a transaction that ended long after the stated time of the backup."""
    start_ms = pair.clock.now_ms()
    await pair.play(lambda client: client.create_topic("orders"))
    await pair.clock.advance(RETENTION_MS)
    await pair.play(lambda client: sent(client, b"kept"))
    with pytest.raises(InvalidInput, match="ended after"):
        await pair.restore(RestoreRequest(Restored.METADATA, start_ms))
    assert await pair.play(read) == [b"kept"]


async def test_two_that_belong_together_are_not_forced(pair: Pair) -> None:
    """Forcing a matching pair would abort all transactional messages without need."""
    await pair.play(lambda client: client.create_topic("orders"))
    await pair.play(lambda client: sent(client, b"kept"))
    with pytest.raises(InvalidInput, match="created together"):
        await pair.restore(RestoreRequest(Restored.LEDGER, forced=True))
    assert await pair.play(read) == [b"kept"]


async def test_an_interrupted_restore_is_repeated_as_it_was(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted restore must be repeated with the same options.

    Other options would keep messages that it had to abort.
    """

    class Stopped(Exception):
        """The command was killed."""

    async def stop(*_: Any) -> None:
        raise Stopped

    async def filled(client: Client) -> None:
        await client.create_topic("orders")
        await sent(client, b"of nobody knows which transaction")

    other = f"sqlite:///{pair.directory}/other.db"
    await pair.play(filled)
    await pair.play(filled, metadata=other, ledger=f"sqlite:///{pair.directory}/others-ledger.db")
    monkeypatch.setattr(Reconciliation, "_write", stop)
    with pytest.raises(Stopped):
        await pair.restore(RestoreRequest(Restored.LEDGER, forced=True), metadata=other)
    monkeypatch.undo()
    for request in (RestoreRequest(Restored.LEDGER), RestoreRequest(Restored.METADATA, 1, forced=True)):
        with pytest.raises(InvalidInput, match="ledger store was the older one, forced"):
            await pair.restore(request, metadata=other)
    await pair.restore(RestoreRequest(Restored.LEDGER, forced=True), metadata=other)
    assert await pair.play(read, metadata=other) == []


async def test_nobody_restores_what_somebody_has_open(pair: Pair) -> None:
    """A restore of open stores is refused, because commits meanwhile would be aborted; so is a second one at once."""
    await pair.play(lambda client: client.create_topic("orders"))
    request = RestoreRequest(Restored.LEDGER)

    async def beside(client: Client) -> None:
        await sent(client, b"kept")
        with pytest.raises(Unavailable, match="stop it"):
            await pair.restore_now(request)
        await sent(client, b"kept too")

    await pair.play(beside)
    done = await asyncio.gather(*(pair.restore_now(request) for _ in range(2)), return_exceptions=True)
    assert sum(isinstance(one, RestoreReport) for one in done) == 1
    assert sum(isinstance(one, Unavailable) for one in done) == 1
    assert await pair.play(read) == [b"kept", b"kept too"]
