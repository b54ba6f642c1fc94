"""Servers that are killed, paused and cut off: what was confirmed is there once, and a paused writer fails."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from txnframework.environment import SystemEnvironment
from txnframework.errors import LedgerClosed, LedgerSealed, OutcomeUnknown, Unavailable
from txnframework.interfaces import IManagedLedger
from txnframework.model import EARLIEST, Append, Appended, Branch, EntryRange, Limit, Position, ProducerSequence, TxnID
from txnframework.testing.servers.proxy import Proxy, Side
from txnframework_nats.ledgers import NatsLedgerOptions, NatsLedgerStore, open_ledger_store
from txnframework_nats.testing.servers.nats import Nats, Setup

OPTIONS = NatsLedgerOptions(streams=1, request_timeout_ms=2_000, patience_ms=40_000)
NAME = "segment://public/default/failures/0000-ffff-0"
ROUNDS = 40


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


@asynccontextmanager
async def opened(hosts: str, options: NatsLedgerOptions = OPTIONS) -> AsyncIterator[NatsLedgerStore]:
    store = await open_ledger_store(f"nats://{hosts}/failures", SystemEnvironment(), options, "installation")
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def opened_through(
    nats: Nats, options: NatsLedgerOptions = OPTIONS
) -> AsyncIterator[tuple[NatsLedgerStore, Proxy]]:
    host, _, port = nats.servers[0].host.rpartition(":")
    async with Proxy((host, int(port))) as proxy, opened("{}:{}".format(*proxy.address), options) as store:
        yield store, proxy


async def append_all(
    ledger: IManagedLedger, producer: str, confirmed: dict[bytes, Position], half_done: asyncio.Event
) -> None:
    """Append entries one after another; what is not confirmed is sent again with its sequence."""
    for number in range(ROUNDS):
        data = f"{producer}{number}".encode()
        entry = Append(data, 1, None, ProducerSequence(producer, number, number))
        while data not in confirmed:
            try:
                (appended,) = await ledger.append((entry,), None)
            except (OutcomeUnknown, Unavailable):
                continue
            confirmed[data] = appended.position
            if len(confirmed) >= ROUNDS // 2:
                half_done.set()


async def entries_of(ledger: IManagedLedger) -> list[tuple[Position, bytes]]:
    found: list[tuple[Position, bytes]] = []
    last = (await ledger.tail()).last_confirmed
    after = EARLIEST
    while page := await ledger.read(EntryRange(after, last), Limit(1_000)):
        found += [(entry.position, entry.data) for entry in page]
        after = page[-1].position
    return found


async def check_stored(nats: Nats, confirmed: dict[bytes, Position]) -> None:
    """Each confirmed entry is at its position, nothing is there twice, and no position is missing."""
    async with opened(nats.hosts) as store:
        found = await entries_of(await store.open(NAME))
        assert {data: position for position, data in found} == confirmed
        assert len(found) == len(confirmed)
        assert [position.entry_id for position, _ in found] == list(range(len(found)))
        for producer in (b"a", b"b"):
            own = [data for _, data in found if data.startswith(producer)]
            assert own == [b"%s%d" % (producer, number) for number in range(ROUNDS)]


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["kill the leader", "kill a follower", "kill all", "pause the leader"])
@in_loop
async def test_confirmed_entries_survive(tmp_path: Path, harm: str) -> None:
    """Two processes append while servers fail; each entry is stored once, at the position that was confirmed."""
    with Nats(tmp_path, servers=3) as nats:
        confirmed: dict[bytes, Position] = {}
        async with opened(nats.hosts) as one, opened(nats.hosts) as two:
            first, second = await one.create(NAME), await two.create(NAME)
            half_done = asyncio.Event()
            writing = asyncio.gather(
                append_all(first, "a", confirmed, half_done), append_all(second, "b", confirmed, half_done)
            )
            await half_done.wait()
            leader = await asyncio.to_thread(nats.leader_of, "failures-ledgers-0")
            if harm == "kill all":
                nats.stop()
            elif harm == "pause the leader":
                leader.pause()
            elif harm == "kill the leader":
                leader.kill()
            else:
                next(server for server in nats.servers if server is not leader).kill()
            if harm == "pause the leader":
                await asyncio.sleep(2)
                leader.resume()
            await asyncio.to_thread(nats.start)
            await writing
        await check_stored(nats, confirmed)


@pytest.mark.parametrize("end", ["seal", "roll"])
@in_loop
async def test_a_paused_writer_changes_nothing(tmp_path: Path, end: str) -> None:
    """The record of a writer, held on its way while another process seals or rolls, is refused when it arrives."""
    with Nats(tmp_path) as nats:
        async with opened_through(nats) as (paused, proxy), opened(nats.hosts) as store:
            writer, other = await paused.create(NAME), await store.create(NAME)
            await writer.append((Append(b"before"),), None)
            opened_id = (await writer.tail()).open_ledger_id
            proxy.stall()
            append = asyncio.ensure_future(writer.append((Append(b"late"),), opened_id))
            await asyncio.sleep(0)
            tail = await (other.seal() if end == "seal" else other.roll())
            proxy.restore()
            with pytest.raises(LedgerSealed if end == "seal" else LedgerClosed):
                await append
            assert await other.tail() == tail
            assert [data for _, data in await entries_of(other)] == [b"before"]


@in_loop
async def test_a_lost_reply_is_found_out(tmp_path: Path) -> None:
    """An append whose reply was lost, on a connection that is replaced, is confirmed and stored once."""
    with Nats(tmp_path) as nats:
        async with opened_through(nats) as (store, proxy):
            ledger = await store.create(NAME)
            tail = await ledger.tail()
            lost = asyncio.Event()
            store.connection.observe(lambda is_connected: None if is_connected else lost.set())
            proxy.cut_after(0, Side.SERVER)
            append = asyncio.ensure_future(ledger.append((Append(b"once"), Append(b"more")), None))
            await lost.wait()
            proxy.restore()
            opened_id = tail.open_ledger_id
            assert await append == (Appended(Position(opened_id, 0)), Appended(Position(opened_id, 1)))
            assert [data for _, data in await entries_of(ledger)] == [b"once", b"more"]


@in_loop
async def test_large_appends_are_whole(tmp_path: Path) -> None:
    """A call larger than a message of the servers is stored as a batch of pieces, and read entry by entry."""
    with Nats(tmp_path) as nats:
        async with opened(nats.hosts) as store, opened(nats.hosts) as reader:
            ledger = await store.create(NAME)
            sizes = [900_000, 10, 2_500_000, 1_100_000, 0]
            data = [bytes((number,)) * size for number, size in enumerate(sizes)]
            await ledger.append(tuple(Append(one) for one in data), None)
            await ledger.append((Append(b"after"),), None)
            found = await entries_of(await reader.open(NAME))
            assert [one for _, one in found] == [*data, b"after"]


@in_loop
async def test_snapshots_open_a_trimmed_log(tmp_path: Path) -> None:
    """After many records, snapshots and trims, an opener has the same state as the process that wrote it."""
    options = NatsLedgerOptions(streams=1, snapshot_records=7, ledger_entries_max=10)
    with Nats(tmp_path) as nats:
        async with opened(nats.hosts, options) as store:
            ledger = await store.create(NAME)
            for number in range(95):
                sequence = ProducerSequence(f"p{number % 3}", number, number)
                await ledger.append((Append(b"%d" % number, 1, None, sequence),), None)
            fifth = (await ledger.ledgers(-1, 100))[5].ledger_id
            assert await ledger.trim(fifth, frozenset()) == fifth
            for number in range(95, 100):
                await ledger.append((Append(b"%d" % number),), None)
            summaries = await ledger.ledgers(-1, 100)
            entries = await entries_of_from(ledger, summaries[0].ledger_id)
            remembered = [await ledger.remembered(f"p{number}", 20) for number in range(3)]
            async with opened(nats.hosts, options) as again:
                other = await again.open(NAME)
                assert await other.tail() == await ledger.tail()
                assert await other.ledgers(-1, 100) == summaries
                assert await entries_of_from(other, summaries[0].ledger_id) == entries
                assert [await other.remembered(f"p{number}", 20) for number in range(3)] == remembered
            assert [data for _, data in entries] == [b"%d" % number for number in range(50, 100)]


@in_loop
async def test_a_trim_of_more_aborted_branches_than_fit_into_a_message(tmp_path: Path) -> None:
    """They are forgotten in several steps, and an opener that reads these has the same state."""
    setup = Setup(lines=("max_payload: 16384",))
    branches = [Branch(TxnID(1, number), 0) for number in range(600)]
    with Nats(tmp_path, setup=setup) as nats:
        async with opened(nats.hosts) as store:
            ledger = await store.create(NAME)
            opened_id = (await ledger.tail()).open_ledger_id
            for at in range(0, 600, 50):
                entries = (
                    Append(b"", 1, branches[number], ProducerSequence("p", number, number))
                    for number in range(at, at + 50)
                )
                await ledger.append(tuple(entries), opened_id)
            tail = await ledger.roll()
            settled = branches.pop()
            assert await ledger.trim(tail.open_ledger_id, frozenset(branches)) == tail.open_ledger_id
            async with opened(nats.hosts) as again:
                for one in (ledger, await again.open(NAME)):
                    assert (await one.remembered("p", -1)).above == 1
                    found = await one.find_sequence("p", 599)
                    assert found is not None
                    assert found.branch is None, f"{settled} counts, and is settled"


async def entries_of_from(ledger: IManagedLedger, ledger_id: int) -> list[tuple[Position, bytes]]:
    page = await ledger.read(EntryRange(Position(ledger_id, -1), (await ledger.tail()).last_confirmed), Limit(1_000))
    return [(entry.position, entry.data) for entry in page]
