"""The crash tests detect faults: with two steps swapped, or a rule left out, some crash point fails."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import pytest
from crash_scenario import Scenario
from crash_teeth import AppliedLast, failures
from crash_walk import Point, Walked, faults, kills
from scenarios import applications, compacting, dead_letters, layouts, own_rows, publishing, races, transactions

from txnframework.broker import LatestByKey, Topics
from txnframework.client import Consumer
from txnframework.client._sends import segment_sender
from txnframework.model import Applied, Expect, Put, Step
from txnframework.model.layout import Layout
from txnframework.model.paths import header_key
from txnframework.plugin import SegmentAppender
from txnframework.plugin._appender import writer_of
from txnframework.runtime.proxy import ForwardingProxy
from txnframework_metadata.buffer import buffer
from txnframework_metadata.coordinator import coordinator
from txnframework_metadata.coordinator.applications import Applications
from txnframework_metadata.coordinator.sweeps import Sweeps
from txnframework_metadata.pending_acks.store import MetadataPendingAcks
from txnframework_metadata.records import headers


def many_seeds(walked: Walked) -> Iterable[Point]:
    """Yield the same race in many orders of events."""
    return (Point(seed=seed) for seed in range(1, 60))


class PutsLast:
    """The way to a store on which puts come after everything else."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._puts: list[Put] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def put(self, write: Put) -> int:
        self._puts.append(write)
        return 0

    async def flush(self) -> None:
        for write in self._puts:
            await self._store.put(write)


def test_abort_record_after_the_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """If an operation is removed before its abort record is written, an aborted message becomes visible."""
    settle = buffer.settle_writes

    async def swapped(store: Any, *rest: Any) -> None:
        last = PutsLast(store)
        await settle(last, *rest)  # type: ignore[arg-type]
        await last.flush()

    monkeypatch.setattr(buffer, "settle_writes", swapped)
    assert any("must not be there" in failed for failed in failures(transactions.SettleAborted))


class PutsOutside(ForwardingProxy):
    """A store that makes each step by its own connection."""

    async def apply(self, step: Step, *_: object) -> Applied:
        applied: Applied = await self._behind.apply(step)
        return applied


def test_header_outside_the_transaction_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between the two makes the messages count without the rows."""
    commit_with = coordinator.commit_with

    async def swapped(store: Any, environment: Any, request: Any, joined: Any, *rest: Any) -> Any:
        return await commit_with(PutsOutside(store), environment, request, joined, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(coordinator, "commit_with", swapped)
    assert any("committed: True, and the rows: {}" in failed for failed in failures(own_rows.CommitWithRows))


def test_cursor_after_the_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """If an operation is removed before the cursor moves, a committed ack is lost."""
    settle = MetadataPendingAcks._settle_operations

    async def swapped(self: Any, *rest: Any) -> None:
        shadow = copy.copy(self)
        shadow._cursor = AppliedLast(self._cursor)
        await settle(shadow, *rest)
        await shadow._cursor.flush()

    monkeypatch.setattr(MetadataPendingAcks, "_settle_operations", swapped)
    assert any("billing receives it" in failed for failed in failures(transactions.SettleCommitted))


def test_seal_before_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that is sealed before its children are planned may have none."""
    change = Topics._change

    async def swapped(self: Any, topic: Any, parents: tuple[int, ...], plan: Any) -> Any:
        layout = await self.layout(topic)
        for parent in parents:
            await (await self._segment(str(layout.name_of(parent)))).ledger.seal()
        return await change(self, topic, parents, plan)

    monkeypatch.setattr(Topics, "_change", swapped)
    assert any("has no children" in failed for failed in failures(layouts.Split))


def test_append_before_the_intent(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that is stored before its intent can be read before it is decided."""

    append = SegmentAppender.append

    async def swapped(self: Any, entries: Any) -> Any:
        branch, principal = writer_of(entries)
        if branch is None:
            return await append(self, entries)
        done: dict[int, Any] = {}
        self._appending = None
        await self._append_rest(entries, (await self._ledger.tail()).open_ledger_id, done)
        await self._admission.admit(branch, principal)
        return tuple(done[at] for at in sorted(done))

    monkeypatch.setattr(SegmentAppender, "append", swapped)
    assert any("which is OPEN" in failed for failed in failures(publishing.Publish))


@pytest.mark.parametrize("scenario", [transactions.CollectCommitted, transactions.CollectAborted])
def test_header_before_what_it_left(monkeypatch: pytest.MonkeyPatch, scenario: type[Scenario]) -> None:
    """If a header is collected before its operations take effect, their effect is lost."""

    async def swapped(self: Any, header: Any) -> bool:
        await self._store.delete(header_key(header.transaction.txn_id), header.version)
        return True

    monkeypatch.setattr(Sweeps, "_collect_one", swapped)
    assert any(failures(scenario))


def test_sends_without_a_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A send that is repeated without its sequence, because its reply was lost, is stored twice."""
    monkeypatch.setattr(segment_sender, "claimed_sequences", lambda *_: None)
    assert any("is 2 times" in failed for failed in failures(publishing.PublishPlain, faults))


def test_an_end_that_overwrites(monkeypatch: pytest.MonkeyPatch) -> None:
    """An end without a version check overwrites an outcome that another process decided."""

    def overwriting(key: Any, value: Any, _: Any, indexes: Any) -> Put:
        return Put(key, value, Expect.ANY, indexes)

    monkeypatch.setattr(headers, "Put", overwriting)
    assert any("was told to be" in failed for failed in failures(races.CommitWhileAborted, many_seeds))
    assert any("was told to be" in failed for failed in failures(races.CommitAtOnceWhileAborted, many_seeds))


def test_an_outcome_that_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that continues with the next transaction without the last outcome repeats a batch."""

    async def left_behind(self: Any, record: Any, ended: Any) -> Any:
        return record

    monkeypatch.setattr(Applications, "_with_outcome", left_behind)
    assert any("is 2 times" in failed for failed in failures(applications.BatchesTakenOver))


def test_a_dead_letter_and_its_acknowledgment_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead letter that is stored without its acknowledgment is duplicated by a crash in between."""
    ack = Consumer.ack

    async def apart(self: Any, *messages: Any, txn: Any = None) -> None:
        if txn is not None:
            await txn.commit()
        await ack(self, *messages)

    monkeypatch.setattr(Consumer, "ack", apart)
    # Only where its sessions end at once, and so not at every step that changed something.
    assert any("the dead-letter topic holds" in failed for failed in failures(dead_letters.PutAside, kills))


def test_a_null_is_dropped_before_what_it_deletes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction that finishes a child with its nulls first shows the parent's messages again after a crash."""
    made, relate = Layout.made, LatestByKey.relate
    monkeypatch.setattr(Layout, "made", lambda self: made(self)[::-1])
    monkeypatch.setattr(LatestByKey, "relate", lambda self, later, _: relate(self, later, None))
    assert any("a reader finds" in failed for failed in failures(compacting.CompactNulls))
