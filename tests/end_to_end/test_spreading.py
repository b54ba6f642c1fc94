"""Behaviours 38 and 42: coordinators spread over hosts, and what is left of a host that died."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, cast

import pytest

from txnframework import Client, State
from txnframework.broker.coordination import held_leases, holder_of
from txnframework.broker.coordinators.sessions import SESSION, Sessions, session_lease
from txnframework.broker.division import divide
from txnframework.errors import InvalidTransactionState, OutcomeUnknown, Unavailable
from txnframework.interfaces import ITransactionCoordinator
from txnframework.model import End, OpenQuery, SweepResult
from txnframework.model.transactions import Begin
from txnframework.runtime.tasks import RESTART_DELAY_MS
from txnframework.testing.clock import VirtualEnvironment, run_ready

if TYPE_CHECKING:
    from conftest import Stores

COORDINATORS = 16
NO_SKEW: dict[str, Any] = {"max_clock_skew_ms": 0}
HOUR_MS = 3_600_000


@pytest.fixture
def clock(memory: Stores) -> VirtualEnvironment:
    """The time of every host of the test."""
    memory.environment = VirtualEnvironment()
    return memory.environment


def kill(client: Client) -> None:
    """Stop a host as the kill of its process does: its session ends, it writes nothing any more."""
    cast(Any, client.host.metadata).crash()
    cast(Any, client.host.ledgers).crash()


async def share(client: Client) -> frozenset[int]:
    """Return the coordinators that a host holds."""
    (served,) = client.host._coordinators.values()
    return await served.share.held()


async def shares(*clients: Client) -> list[frozenset[int]]:
    """Return the coordinators that hosts hold."""
    return [await share(client) for client in clients]


async def begun(client: Client, timeout_ms: int = HOUR_MS, **more: bool) -> Any:
    """Return a transaction that has begun."""
    txn = client.transaction(timeout_ms=timeout_ms, **more)
    await txn.begin()
    return txn


async def take_as_earlier(client: Client, token: str) -> set[int]:
    """
    Take a share of the coordinators as hosts of the first releases do; return the ids that the host holds then.

    They name a host by its token alone, and compare it with the whole text in the lease of an id.
    """
    store, prefix = client.host.metadata, "coordinator metadata "
    await store.acquire_lease(f"{prefix}host {token}", token)
    await run_ready()
    leases = {name: holder_of(lease) for name, lease in (await held_leases(store, prefix)).items()}
    hosts = sorted(name.removeprefix(f"{prefix}host ") for name in leases if name.startswith(f"{prefix}host "))
    ids = range(COORDINATORS)
    holders = {one: leases[f"{prefix}id {one}"] for one in ids if f"{prefix}id {one}" in leases}
    wanted = {one for one, host in divide(hosts, ids, holders).items() if host == token}
    for one in wanted - {*holders}:
        await store.acquire_lease(f"{prefix}id {one}", token)
    return wanted - {*holders}


@pytest.mark.parametrize("token", ["0" * 16, "f" * 16])
async def test_hosts_of_earlier_releases_share_them_too(memory: Stores, clock: VirtualEnvironment, token: str) -> None:
    """Each id has a host when an earlier release starts beside this one, as during an upgrade or the way back."""
    async with memory.open() as host, memory.open() as earlier:
        await begun(host)
        await clock.advance(0)
        taken = await take_as_earlier(earlier, token)
        await clock.advance(0)
        assert await share(host) | taken == {*range(COORDINATORS)}
        assert len(taken) == COORDINATORS // 2


async def test_hosts_share_the_coordinators(memory: Stores, clock: VirtualEnvironment) -> None:
    """Evenly, each id at one host; who comes gets some, and what a dead host had is taken over."""
    async with AsyncExitStack() as stack:
        hosts = [await stack.enter_async_context(memory.open()) for _ in range(3)]
        first, *others = hosts
        await begun(first)
        await clock.advance(0)
        assert await shares(first) == [frozenset(range(COORDINATORS))]
        for host in others:
            await begun(host)
        await clock.advance(0)
        for living in (hosts, [hosts[0], hosts[2]]):
            if len(living) == 2:
                kill(hosts[1])
                await clock.advance(0)
            held = await shares(*living)
            assert max(map(len, held)) - min(map(len, held)) <= 1
            assert Counter(one for some in held for one in some) == Counter(range(COORDINATORS))
            for host, mine in zip(living, held, strict=True):
                assert (await begun(host)).id.coordinator in mine


async def test_a_host_that_was_paused_takes_part_again(memory: Stores, clock: VirtualEnvironment) -> None:
    """Others took its coordinators when its session ended: the host holds none of them until it gets a new share."""
    async with memory.open() as paused, memory.open() as other:
        for client in (paused, other):
            await begun(client)
        await clock.advance(0)
        cast(Any, paused.host.metadata).end_session()
        await clock.advance(0)
        held = await shares(paused, other)
        assert sorted(map(len, held)) == [COORDINATORS // 2, COORDINATORS // 2]
        assert not held[0] & held[1]


async def test_more_hosts_than_coordinators(memory: Stores, clock: VirtualEnvironment) -> None:
    """A host without a coordinator begins transactions, too, and every id is given once."""
    async with AsyncExitStack() as stack:
        opening = [memory.open(transactions={"coordinators": 2}) for _ in range(4)]
        hosts = [await stack.enter_async_context(one) for one in opening]
        for host in hosts:
            await begun(host)
        await clock.advance(0)
        held = await shares(*hosts)
        assert sorted(map(len, held)) == [0, 0, 1, 1]
        txns = await asyncio.gather(*(begun(host) for host in hosts for _ in range(10)))
        assert len({txn.id for txn in txns}) == 40
        assert {txn.id.coordinator for txn in txns} == {0, 1}


async def test_a_host_that_does_not_sweep_takes_no_share(memory: Stores, clock: VirtualEnvironment) -> None:
    """A host that does not sweep takes no coordinators, because their transactions would not be swept."""
    async with memory.open() as host, memory.open(transactions={"sweep": False}) as guest:
        for client in (guest, host):
            await begun(client)
        await clock.advance(0)
        assert await shares(host, guest) == [frozenset(range(COORDINATORS)), frozenset()]


async def test_one_host_sweeps_and_another_goes_on(memory: Stores, clock: VirtualEnvironment) -> None:
    """Whichever is elected, alone; when it dies its successor sweeps at once."""
    swept: list[Client] = []

    async def watch(client: Client) -> None:
        coordinator = cast(Any, await client.host.coordinator())
        collect = coordinator.collect

        async def noted(now_ms: int) -> SweepResult:
            swept.append(client)
            return cast(SweepResult, await collect(now_ms))

        coordinator.collect = noted

    bounds = {"sweep_interval_ms": 1_000}
    async with memory.open(transactions=bounds) as one, memory.open(transactions=bounds) as two:
        for client in (one, two):
            await watch(client)
            await clock.advance(0)
        await clock.advance(5_000)
        assert Counter(swept).keys() == {one}
        swept.clear()
        kill(one)
        await clock.advance(0)
        assert swept
        assert Counter(swept).keys() == {two}


async def test_a_short_timeout_fires_in_time_whoever_sweeps(memory: Stores, clock: VirtualEnvironment) -> None:
    """5 s take about 5 s, though another host is elected; a thousand at once; a long one stays; ending cancels."""
    bounds = NO_SKEW | {"sweep_interval_ms": HOUR_MS}
    async with memory.open(transactions=bounds) as elected, memory.open(transactions=bounds) as client:
        await elected.host.coordinator()
        await clock.advance(1_000)
        txns = [await begun(client, 5_000) for _ in range(1_000)]
        long, ended = await begun(client), await begun(client, 5_000)
        await ended.commit()
        assert len(client.host.own_transactions.deadlines) == 1_001
        await clock.advance(4_999)
        assert await client.outcome(txns[-1].id) is State.OPEN
        await clock.advance(200)
        for txn in txns:
            assert await client.outcome(txn.id) is State.ABORTED
        assert await client.outcome(long.id) is State.OPEN
        with pytest.raises(InvalidTransactionState):
            await txns[0].commit()


async def test_timers_are_taken_over_and_armed_again(memory: Stores, clock: VirtualEnvironment) -> None:
    """Of a transaction that outlives its client: by another host when its own one dies, and after a restart of all."""
    bounds = NO_SKEW | {"sweep_interval_ms": HOUR_MS}
    async with memory.open(transactions=bounds) as elected:
        await elected.host.coordinator()
        await clock.advance(0)
        async with memory.open(transactions=bounds) as client:
            taken_over = await begun(client, 5_000, outlives_client=True)
            rearmed = await begun(client, 60_000, outlives_client=True)
            kill(client)
        await clock.advance(4_999)
        assert await elected.outcome(taken_over.id) is State.OPEN
        await clock.advance(1)
        assert await elected.outcome(taken_over.id) is State.ABORTED
    async with memory.open(transactions=bounds) as client:
        await client.host.coordinator()
        await clock.advance(50_000)
        assert await client.outcome(rearmed.id) is State.OPEN
        await clock.advance(5_000)
        assert await client.outcome(rearmed.id) is State.ABORTED


@pytest.mark.parametrize("elected_too", [False, True])
async def test_what_a_killed_host_left_open_is_aborted_at_once(
    memory: Stores, clock: VirtualEnvironment, elected_too: bool
) -> None:
    """Transactions are aborted at once, also when the killed host was the sweeper; waiting readers continue."""
    bounds = {"sweep_interval_ms": HOUR_MS}
    async with memory.open(transactions=bounds) as one, memory.open(transactions=bounds) as two:
        for client in (one, two):
            await client.host.coordinator()
            await clock.advance(0)
        lost, survivor = (one, two) if elected_too else (two, one)
        await survivor.create_topic("orders")
        producer, mine = await lost.producer("orders"), await begun(survivor)
        txn = await begun(lost)
        await producer.send(b"never", txn=txn)
        await (await survivor.producer("orders")).send(b"behind")
        assert await memory.read(survivor, "orders") == []
        kill(lost)
        await clock.advance(0)
        assert await survivor.outcome(txn.id) is State.ABORTED
        assert await survivor.outcome(mine.id) is State.OPEN
        assert await memory.read(survivor, "orders") == [b"behind"]


async def test_a_session_that_nobody_heard_of_is_gone_all_the_same(memory: Stores, clock: VirtualEnvironment) -> None:
    """A process begins a transaction and dies between two sweeps: its session's end alone wakes the elected sweeper."""
    bounds = {"sweep_interval_ms": HOUR_MS}
    async with memory.open(transactions=bounds) as elected:
        await elected.host.coordinator()
        await clock.advance(10)
        async with memory.open(transactions={"sweep": False}) as guest:
            txn = await begun(guest)
            kill(guest)
        await clock.advance(100)
        assert await elected.outcome(txn.id) is State.ABORTED


async def test_a_change_that_shows_no_session_is_an_unsure_reason(memory: Stores, clock: VirtualEnvironment) -> None:
    """As on a store that reports every commit of another process: a sweep for it may come later."""
    async with memory.open(transactions={"sweep": False}) as client:
        store: Any = client.host.metadata
        changes: asyncio.Queue[None] = asyncio.Queue()
        reasons: list[bool] = []

        class Watch:
            changed = changes.get

            async def close(self) -> None: ...

        async def watch(_: object) -> Watch:
            return Watch()

        async def change() -> None:
            changes.put_nowait(None)
            await clock.advance(1)

        store.watch = watch
        sessions = Sessions(store, clock, "test", reasons.append, list)
        sessions.start()
        await clock.advance(1)
        await change()
        lease = await store.acquire_lease(session_lease("other"), "holder")
        await change()
        await lease.release()
        await change()
        assert reasons == [False, True, False, False]
        await sessions.close()


async def test_one_session_is_asked_for_however_often_asking_is_given_up(
    memory: Stores, clock: VirtualEnvironment
) -> None:
    """A begin that is cancelled, or hears no answer, while its session's lease is taken leaves none behind."""
    async with memory.open() as client:
        taking = client.host.metadata.acquire_lease
        lose = True

        async def acquire(name: str, holder: str) -> Any:
            lease = await taking(name, holder)
            if lose and name.startswith(SESSION):
                raise OutcomeUnknown("the reply was lost")
            return lease

        client.host.metadata.acquire_lease = acquire  # type: ignore[method-assign]
        for _ in range(3):
            with pytest.raises(OutcomeUnknown):
                await client.host.sessions.own()
        for steps in range(1, 12):
            asking = asyncio.ensure_future(client.host.sessions.own())
            for _ in range(steps):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait({asking})
        lose = False
        own = await client.host.sessions.own()
        assert list(await held_leases(client.host.metadata, SESSION)) == [session_lease(own)]


async def test_an_orphan_that_cannot_be_aborted_keeps_no_other_from_it(
    memory: Stores, clock: VirtualEnvironment
) -> None:
    """Other orphans are aborted at once; the failed one is retried soon, before the next interval."""
    bounds = {"sweep_interval_ms": HOUR_MS}
    async with memory.open(transactions=bounds) as elected:
        coordinator: Any = await elected.host.coordinator()
        await clock.advance(10)
        ending, fails = coordinator.end, True

        async def end(request: End) -> Any:
            if fails and request.txn_id == first.id:
                raise Unavailable("not now")
            return await ending(request)

        coordinator.end = end
        async with memory.open(transactions={"sweep": False}) as guest:
            first, second = await begun(guest, HOUR_MS - 1), await begun(guest)
            kill(guest)
        await clock.advance(100)
        assert await elected.outcome(second.id) is State.ABORTED
        assert await elected.outcome(first.id) is State.OPEN
        fails = False
        await clock.advance(RESTART_DELAY_MS)
        assert await elected.outcome(first.id) is State.ABORTED


async def test_no_share_is_needed_to_begin(memory: Stores, clock: VirtualEnvironment) -> None:
    """A coordinator that the store keeps from its leases begins transactions none the less: leases only save work."""
    async with memory.open() as client:
        coordinator: ITransactionCoordinator = await client.host.coordinator()

        async def refuse(name: str, holder: str) -> None:
            raise Unavailable(f"no lease {name} for {holder}")

        client.host.metadata.acquire_lease = refuse  # type: ignore[method-assign]
        txns = {(await coordinator.begin(Begin(HOUR_MS))).txn_id for _ in range(3)}
        assert len(txns) == len(await coordinator.list_open(OpenQuery())) == 3
