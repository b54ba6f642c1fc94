"""Takeovers, lost leases, rebalances and aborted orphans: each is logged once, with the processes that it is about."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from txnframework import Client
from txnframework.testing.clock import VirtualEnvironment, run_ready

if TYPE_CHECKING:
    from conftest import Stores


@pytest.fixture
def clock(memory: Stores) -> VirtualEnvironment:
    """The time of every process of the test."""
    memory.environment = VirtualEnvironment()
    return memory.environment


@pytest.fixture
def events(caplog: pytest.LogCaptureFixture) -> Events:
    return Events(caplog)


class Events:
    """The events that were logged since the last look."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        caplog.set_level(logging.INFO, "txnframework.events")

    def take(self) -> list[tuple[str, dict[str, str]]]:
        """Return event and facts of each record, and clear the list; assert that each sentence contains its facts."""
        found: list[tuple[str, dict[str, str]]] = []
        for record in self._caplog.records:
            if record.name == "txnframework.events":
                event, facts = vars(record)["event"], vars(record)["facts"]
                assert all(value in record.getMessage() for value in facts.values())
                found.append((event, facts))
        self._caplog.clear()
        return sorted(found, key=str)


def named(name: str) -> dict[str, Any]:
    return {"client": {"name": name}}


def process_of(client: Client) -> str:
    """Return the name of a client's process, host and process id, as logs and lists show it."""
    return client.host.environment.process_name(client.host.config.client.name)


async def settled(clock: VirtualEnvironment) -> None:
    """Wait until all pending work is done."""
    for _ in range(20):
        await run_ready()
    await clock.advance(10)


def kill(client: Client) -> None:
    """Stop a process: its session ends, and it writes nothing any more."""
    for store in (client.host.metadata, client.host.ledgers):
        dying: Any = store
        dying.crash()


def about(segment: str, client: Client, **more: str) -> dict[str, str]:
    return {"segment": segment, "subscription": "billing", "process": process_of(client), **more}


async def test_takeovers(memory: Stores, clock: VirtualEnvironment, events: Events) -> None:
    """A consumer that takes over logs its predecessor; a waiting consumer logs nothing."""
    async with memory.open(**named("one")) as one, memory.open(**named("two")) as two:
        await one.create_topic("orders")
        for client in (one, two):
            await client.consumer("orders", "billing", type="failover", start="earliest", balance=False)
        await settled(clock)
        assert events.take() == []
        (segment,) = one.host.dispatches.segments_of("billing")
        kill(one)
        await settled(clock)
        of_two = [event for event in events.take() if event[1]["process"] == process_of(two)]
        of_two = [event for event in of_two if event[0] != "sweeps_taken_over"]
        assert of_two == [("segment_taken_over", about(segment, two, earlier=process_of(one)))]


async def test_rebalances(memory: Stores, clock: VirtualEnvironment, events: Events) -> None:
    """A process of a shared subscription logs the segments that it takes, and those that it gives to others."""
    async with memory.open(**named("one")) as one, memory.open(**named("two")) as two:
        await one.create_topic("orders", segments=2)
        await one.consumer("orders", "billing", type="shared", start="earliest")
        await settled(clock)
        both = sorted(one.host.dispatches.segments_of("billing"))
        assert events.take() == [("segment_taken", about(each, one)) for each in both]
        await two.consumer("orders", "billing", type="shared")
        await settled(clock)
        (moved,) = two.host.dispatches.segments_of("billing")
        assert events.take() == [
            ("segment_given_up", about(moved, one, to=process_of(two))),
            ("segment_taken", about(moved, two)),
        ]


async def test_lost_leases(memory: Stores, clock: VirtualEnvironment, events: Events) -> None:
    """A process that was cut off logs the loss of its segment and its transactions, and continues."""
    async with memory.open(**named("one")) as one:
        await one.create_topic("orders")
        await one.consumer("orders", "billing", type="exclusive", start="earliest")
        await one.transaction().begin()
        (segment,) = one.host.dispatches.segments_of("billing")
        session = await one.host.sessions.own()
        assert events.take() == []
        store: Any = one.host.metadata
        store.cut()
        store.end_session()
        await settled(clock)
        assert events.take() == [
            ("lease_lost", about(segment, one)),
            ("session_lost", {"session": session, "process": process_of(one)}),
        ]
        store.restore()


async def test_orphans(memory: Stores, clock: VirtualEnvironment, events: Events) -> None:
    """The process that aborts a dead process's transaction logs both names."""
    async with memory.open(**named("dead")) as dead, memory.open(**named("alive")) as alive:
        txn = dead.transaction()
        await txn.begin()
        await alive.transaction().begin()  # opens its coordinator, so that it sweeps
        await settled(clock)
        events.take()
        kill(dead)
        for _ in range(5):
            await clock.advance(1_000)
            await settled(clock)
        orphan = {"transaction": str(txn.id), "process": process_of(alive), "owner": process_of(dead)}
        found = [facts for event, facts in events.take() if event == "orphan_aborted"]
        assert found == [orphan]


def ids_taken(found: list[tuple[str, dict[str, str]]], about: dict[str, str]) -> set[int]:
    """Return the ids of a coordinator that a process says to have taken over from another one."""
    texts = [
        facts["ids"] for event, facts in found if event == "coordinators_taken_over" and facts.items() > about.items()
    ]
    return {int(each) for text in texts for each in text.split(", ")}


async def test_coordinators(memory: Stores, clock: VirtualEnvironment, events: Events) -> None:
    """A process that serves and sweeps a coordinator after another one names both; the first one says nothing."""
    async with memory.open(**named("one")) as one, memory.open(**named("two")) as two:
        for client in (one, two):
            await client.transaction().begin()
            await settled(clock)
        both = {"process": process_of(two), "earlier": process_of(one), "coordinator": "metadata"}
        served = {*range(two.host.config.transactions.coordinators)}
        shared = ids_taken(events.take(), both)
        assert shared < served
        kill(one)
        for _ in range(5):
            await clock.advance(1_000)
            await settled(clock)
        taken = events.take()
        assert ("sweeps_taken_over", both) in taken
        assert shared | ids_taken(taken, both) == served


@pytest.mark.parametrize("timers", [1, 10])
async def test_timeouts(memory: Stores, clock: VirtualEnvironment, events: Events, timers: int) -> None:
    """A transaction that is aborted at its timeout is named with its process, whichever process aborts it."""
    transactions = {"timers_max": timers}
    async with (
        memory.open(**named("other"), transactions={"sweep_interval_ms": 1_000}) as other,
        memory.open(**named("slow"), transactions=transactions) as slow,
    ):
        await other.transaction().begin()  # opens its coordinator, so that it sweeps
        await settled(clock)
        patient = slow.transaction(timeout_ms=600_000)
        await patient.begin()  # has the only timer, if there is one only
        txn = slow.transaction(timeout_ms=5_000)
        await txn.begin()
        early = slow.transaction(timeout_ms=5_000)
        await early.begin()
        await other.abort(early.id)  # its process learns of it at the timeout, and has nothing to say
        events.take()
        for _ in range(20):
            await clock.advance(1_000)
            await settled(clock)
        by = slow if timers > 1 else other
        found = [facts for event, facts in events.take() if event == "overdue_aborted"]
        assert found == [{"transaction": str(txn.id), "process": process_of(by), "owner": process_of(slow)}]
