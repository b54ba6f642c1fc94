"""Batching that is switched while hosts run: what is stored, who learns of it, and what is observed."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from legacy_world import World, in_world
from test_log import SMALL, Log, in_log, opened, records

from txnframework.errors import CorruptRecord, Unavailable, UnknownFormat
from txnframework.interfaces import ILedgerStore, IManagedLedger, IMetadataStore
from txnframework.metrics import Metrics
from txnframework.model import Expect, Key, Put
from txnframework.testing import VirtualEnvironment
from txnframework.testing.clock import run_ready
from txnframework.testing.connection import StoreConnection, intercept_calls
from txnframework_legacy.log import Batching
from txnframework_legacy.log.switched_writer import LogWriterFactory, SwitchedLogWriter, flush_observer
from txnframework_legacy.log.switches import (
    RETRY_DELAY_MS,
    Decision,
    LogKind,
    Scope,
    SwitchDocument,
    Switches,
    SwitchWatcher,
    SwitchWatchers,
    load_switches,
    put_switch,
)
from txnframework_legacy.options import CoordinatorOptions
from txnframework_memory.space import MemorySpace

TOPIC = "persistent://a/b/orders/2024"
ALL, ONE, HERE, THERE = Scope(), Scope("8000"), Scope(TOPIC, "billing"), Scope(TOPIC, "a/b: %~é")
ON, OFF = SwitchDocument(enabled=True, switched_ms=1), SwitchDocument(enabled=False, switched_ms=2)


def test_the_narrowest_switch_decides() -> None:
    """A log follows the switch for it alone, else that of its topic, else that for all, else its configuration."""
    assert Switches({}).decide(HERE, configured=True) == Decision(enabled=True)
    switches = Switches({ALL: False, Scope(TOPIC): True, HERE: False, Scope("x"): True})
    assert switches.decide(HERE, configured=True) == Decision(enabled=False, scope=HERE)
    assert switches.decide(THERE, configured=False) == Decision(enabled=True, scope=Scope(TOPIC))
    assert switches.decide(ONE, configured=True) == Decision(enabled=False, scope=ALL)
    assert [str(scope) for scope in (ALL, ONE, HERE)] == ["all", "8000", f"subscription billing of {TOPIC}"]


class Host:
    """One process's way to the stores, and the writers of its logs."""

    def __init__(self, store: IMetadataStore, ledgers: ILedgerStore, environment: VirtualEnvironment) -> None:
        self.connection = StoreConnection()
        self.store = intercept_calls(store, self.connection)
        self.environment = environment
        self.ledgers = ledgers
        self.opened: list[SwitchedLogWriter] = []
        self._shared = {kind: SwitchWatchers(kind) for kind in LogKind}

    def switches(self, kind: LogKind) -> SwitchWatcher:
        return self._shared[kind].of(self.store, self.environment)

    async def open(self, scope: Scope, batching: Batching | None = None) -> SwitchedLogWriter:
        kind = LogKind.PENDING_ACKS if scope.inner else LogKind.TRANSACTIONS
        writers = LogWriterFactory(self.switches(kind), self.environment, batching or Batching())
        ledger: IManagedLedger = await self.ledgers.create(f"log of {scope}")
        self.opened.append(await writers.open(ledger, scope))
        return self.opened[-1]


class Hosts:
    def __init__(self) -> None:
        self.environment = VirtualEnvironment()
        self._space = MemorySpace(self.environment)

    async def host(self) -> Host:
        return Host(await self._space.open_metadata(), await self._space.open_ledgers(), self.environment)


def among_hosts(test: Callable[[Hosts], Awaitable[None]]) -> Callable[[], None]:
    """Run a test with hosts over one space."""

    async def with_hosts() -> None:
        async with asyncio.timeout(60):
            await test(Hosts())

    def run() -> None:
        asyncio.run(with_hosts())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@among_hosts
async def test_what_is_put_is_loaded(hosts: Hosts) -> None:
    """Scopes of whatever names come back as they were switched; leaving one to the configuration may be repeated."""
    store = (await hosts.host()).store
    for scope, document in ((ALL, ON), (HERE, OFF), (THERE, ON), (Scope(TOPIC), OFF)):
        await put_switch(store, LogKind.PENDING_ACKS, scope, document)
    for _ in range(2):
        await put_switch(store, LogKind.PENDING_ACKS, HERE, None)
    switches = await load_switches(store, LogKind.PENDING_ACKS)
    assert switches.decide(THERE, configured=False) == Decision(enabled=True, scope=THERE)
    assert switches.decide(HERE, configured=True) == Decision(enabled=False, scope=Scope(TOPIC))
    assert switches.decide(Scope("t", "s"), configured=False) == Decision(enabled=True, scope=ALL)
    untouched = await load_switches(store, LogKind.TRANSACTIONS)
    assert untouched.decide(ONE, configured=False) == Decision(enabled=False)


@among_hosts
async def test_a_lost_reply_to_a_switch(hosts: Hosts) -> None:
    """A switch whose reply was lost is put once more: it says the same."""
    host = await hosts.host()
    for document in (ON, None):
        host.connection.lose(1)
        await put_switch(host.store, LogKind.TRANSACTIONS, ONE, document)
        switches = await load_switches(host.store, LogKind.TRANSACTIONS)
        assert switches.decide(ONE, configured=False).enabled is (document is ON)


@among_hosts
async def test_every_host_follows(hosts: Hosts) -> None:
    """Each switch reaches each host's logs of that scope, those that are opened later too, and no others."""
    first, second, admin = [await hosts.host() for _ in range(3)]
    here, there = await first.open(HERE), await second.open(HERE)
    other, log = await second.open(THERE, Batching(enabled=True)), await first.open(ONE)
    batching = lambda: [one.batching for one in (here, there, other, log)]  # noqa: E731
    assert batching() == [False, False, True, False]
    for scope, document, expected in (
        (HERE, ON, [True, True, True, False]),
        (ALL, OFF, [True, True, False, False]),
        (HERE, None, [False, False, False, False]),
        (Scope(TOPIC), ON, [True, True, True, False]),
    ):
        await put_switch(admin.store, LogKind.PENDING_ACKS, scope, document)
        await run_ready()
        assert batching() == expected
    assert (await (await hosts.host()).open(HERE)).batching is True
    await put_switch(admin.store, LogKind.TRANSACTIONS, ONE, ON)
    await run_ready()
    assert batching() == [True] * 4


@among_hosts
async def test_all_logs_of_a_host_share_a_watch(hosts: Hosts) -> None:
    """However many logs a host has open, it watches once, and no more when the last was closed."""
    host = await hosts.host()
    tasks = len(asyncio.all_tasks())
    for _ in range(2):
        writers = [await host.open(Scope(TOPIC, str(number))) for number in range(20)]
        assert len(asyncio.all_tasks()) == tasks + 1
        for writer in (*writers, *writers):
            await writer.close()
        assert len(asyncio.all_tasks()) == tasks
    assert host.connection.asked < 2 * 10


@among_hosts
async def test_what_cannot_be_read_leaves_a_host_as_it_is(hosts: Hosts) -> None:
    """While the metadata store is away a host goes on as it was, and catches up when it is back."""
    host, admin = await hosts.host(), await hosts.host()
    writer = await host.open(ONE)
    host.connection.is_cut = True
    await put_switch(admin.store, LogKind.TRANSACTIONS, ALL, ON)
    await hosts.environment.advance(3 * RETRY_DELAY_MS)
    assert not writer.batching
    host.connection.restore()
    await hosts.environment.advance(RETRY_DELAY_MS)
    assert writer.batching


@among_hosts
async def test_a_log_is_not_opened_by_guess(hosts: Hosts) -> None:
    """A switch that is unreadable when a log is opened is an error that names it; nothing stays behind."""
    host = await hosts.host()
    key = Key("/log-batching/transactions/8000/%")
    tasks = len(asyncio.all_tasks())
    for value, kind in ((b'{"format": 99, "enabled": true}', UnknownFormat), (b'{"format": 2}', CorruptRecord)):
        await host.store.put(Put(key, value, Expect.ANY))
        with pytest.raises(kind, match="/log-batching/transactions/8000/%"):
            await host.open(Scope("8001"))
    await host.store.delete(key, Expect.ANY)
    host.connection.refuse(1)
    with pytest.raises(Unavailable):
        await host.open(ONE)
    assert len(asyncio.all_tasks()) == tasks
    assert not (await host.open(ONE)).batching


@in_world
async def test_a_coordinator_is_switched(world: World) -> None:
    """Coordinators share entries as soon as they are switched, in every process, and stop it again."""
    options = CoordinatorOptions(batching=Batching(records_max=8, delay_ms=1))
    processes = [await world.process(options) for _ in range(2)]
    store = cast(IMetadataStore, await world.space.open_metadata())

    async def entries_of_eight() -> list[int]:
        """Return how many entries each process makes of eight records."""
        found = []
        for process in processes:
            before = await entries()
            beginnings = [asyncio.ensure_future(process.begin()) for _ in range(8)]
            await world.environment.advance(1)
            await asyncio.gather(*beginnings)
            found.append(await entries() - before)
        return found

    async def entries() -> int:
        ledger = await processes[0].ledgers.create("transaction-log:8000")
        return sum(one.entries for one in await ledger.ledgers(-1, 100))

    assert await entries_of_eight() == [8, 8]
    for scope, document, expected in ((ALL, ON, [1, 1]), (ONE, OFF, [8, 8]), (ONE, None, [1, 1])):
        await put_switch(store, LogKind.TRANSACTIONS, scope, document)
        await run_ready()
        assert await entries_of_eight() == expected


# -- what is observed ---------------------------------------------------------------------------------

TC, ACKS = "txnframework_transaction_log", "txnframework_pending_ack_log"
RECORDS, SIZE = "batch_records", "batch_bytes"
DELAY, TRIGGERS = "batch_delay_seconds", "batches_total"


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def samples(metrics: Metrics) -> list[str]:
    return [sample.name for family in metrics.registry.collect() for sample in family.samples]


@in_log(SMALL)
async def test_what_is_written_in_batches_is_measured(log: Log) -> None:
    """Records and bytes of each entry, the seconds that its oldest record waited, and what let it be sent."""
    metrics, told = Metrics(), log.flushes
    tell = flush_observer(metrics, LogKind.TRANSACTIONS, "8000")
    await log.begin(*records(4))
    await log.begin(b"waits", b"y" * 600)
    await log.environment.advance(2)
    await log.begin(b"z" * 600)
    await log.environment.advance(SMALL.delay_ms)
    await log.begin(b"x" * 5_000)
    for one in told:
        tell(one)
    label = {"coordinator_id": "8000"}
    assert (value(metrics, f"{TC}_{RECORDS}_sum", **label), value(metrics, f"{TC}_{RECORDS}_count", **label)) == (8, 4)
    stored = sum([len(entry.data) for entry in await log.entries_read()])
    assert value(metrics, f"{TC}_{SIZE}_sum", **label) == stored
    # The first two waited 2 ms because the third did not fit, the third waited 5 ms in vain, the others did not wait.
    assert value(metrics, f"{TC}_{DELAY}_sum", **label) == pytest.approx(0.007)
    assert value(metrics, f"{TC}_{DELAY}_bucket", le="0.002", **label) == 3
    reasons = {"max_records": 1, "max_size": 1, "max_delay": 1, "large_data": 1, "switched_off": None}
    for reason, count in reasons.items():
        assert value(metrics, f"{TC}_{TRIGGERS}", reason=reason, **label) == count


@in_log(SMALL)
async def test_waiting_ends_when_an_entry_is_sent(log: Log) -> None:
    """How long the ledger took is no part of the delay; how long an entry waited for one before it is."""
    held = log.connection.hold(1)
    await log.begin(*records(4))
    await held.reached.wait()
    await log.begin(*records(4))
    await log.environment.advance(1_000)
    log.connection.restore()
    await run_ready()
    assert [one.waited_ms for one in log.flushes] == [0, 1_000]


async def test_subscriptions_are_not_told_apart() -> None:
    """The logs of acknowledgments have names of their own and no label, however many there are."""
    metrics = Metrics()
    async with opened(SMALL) as log:
        await log.add(b"record")
        for subscription in ("one", "two"):
            flush_observer(metrics, LogKind.PENDING_ACKS, subscription)(log.flushes[0])
    assert value(metrics, f"{ACKS}_{RECORDS}_count") == 2
    assert value(metrics, f"{ACKS}_{TRIGGERS}", reason="max_delay") == 2
    assert not [name for name in samples(metrics) if name.startswith(TC)]


@among_hosts
async def test_what_is_followed_goes_with_who_follows(hosts: Hosts) -> None:
    """All open objects on one store share one watch; nothing is kept for a store without open objects."""
    shared, host = SwitchWatchers(LogKind.PENDING_ACKS), await hosts.host()
    followed = shared.of(host.store, hosts.environment)
    assert shared.of(host.store, hosts.environment) is followed
    assert shared.of((await hosts.host()).store, hosts.environment) is not followed
    store, gone = weakref.ref(host.store), weakref.ref(followed)
    del host, followed
    gc.collect()
    assert (store(), gone()) == (None, None)


@among_hosts
async def test_nothing_is_exported_while_nothing_is_batched(hosts: Hosts) -> None:
    """Before batching is switched on, and after it was switched off, no figure appears or changes."""
    host, metrics = await hosts.host(), Metrics()
    writers = LogWriterFactory(host.switches(LogKind.TRANSACTIONS), hosts.environment, Batching(), metrics)
    writer = await writers.open(await host.ledgers.create("flush_observer"), ONE)
    counts: list[Any] = []
    for document in (None, ON, OFF):
        await put_switch(host.store, LogKind.TRANSACTIONS, ONE, document)
        await run_ready()
        adding = [asyncio.ensure_future(writer.add(b"record")) for _ in range(3)]
        await hosts.environment.advance(1)
        await asyncio.gather(*adding)
        counts.append((len(samples(metrics)) > 0, value(metrics, f"{TC}_{RECORDS}_sum", coordinator_id="8000")))
    assert counts == [(False, None), (True, 3), (True, 3)]
