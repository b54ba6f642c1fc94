"""After a lost reply, a write is looked up: it was done, is repeated, or its outcome is unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss, SessionExpiredError

from txnframework.errors import OutcomeUnknown, VersionMismatch
from txnframework.model import Check, Delete, Expect, IndexEntry, Key, KeyRange, Put, PutSequential, Step
from txnframework_zookeeper._metadata_store import ZooKeeperMetadataStore
from txnframework_zookeeper.connection._requests import Multi

A, B = Key("/p/a", "p"), Key("/p/b", "p")
ENTRIES = (IndexEntry("index", b"\x20x\0"),)


class Losing:
    """Loses the next multi of a store, or its reply, and lets something happen before that is known."""

    def __init__(self, store: ZooKeeperMetadataStore) -> None:
        self._session = store.zookeeper.session
        self._submit = self._session.submit
        self._session.submit = self  # type: ignore[method-assign,assignment]
        self._is_applied: bool | None = None
        self._meanwhile: Callable[[], Awaitable[object]] | None = None

    def lose(self, is_applied: bool, meanwhile: Callable[[], Awaitable[object]] | None = None) -> None:
        """Lose the next one."""
        self._is_applied, self._meanwhile = is_applied, meanwhile

    def __call__(self, request: object, reply: Any, session_id: int | None = None) -> None:
        is_applied, meanwhile = self._is_applied, self._meanwhile
        if is_applied is None or not isinstance(request, Multi):
            self._submit(request, reply, session_id)
            return
        self._is_applied = None

        async def lose() -> None:
            if is_applied:
                done = type(reply)(self._session.loop)
                self._submit(request, done, session_id)
                await done.answer
            if meanwhile is not None:
                await meanwhile()
            reply.take(ConnectionLoss() if is_applied else SessionExpiredError())

        self._losing = asyncio.ensure_future(lose())


@pytest.fixture
def losing(store: ZooKeeperMetadataStore) -> Losing:
    return Losing(store)


@pytest.mark.parametrize("is_applied", [True, False], ids=["reply", "request"])
async def test_every_write_is_done_once_whatever_was_lost(
    is_applied: bool, store: ZooKeeperMetadataStore, other: ZooKeeperMetadataStore, losing: Losing
) -> None:
    """This covers creating, replacing with and without a version, batches, sequential records, and removals."""
    losing.lose(is_applied)
    made = await store.put(Put(A, b"1", Expect.ABSENT, ENTRIES))
    for expected in (made, Expect.ANY):
        losing.lose(is_applied)
        version = await store.put(Put(A, b"2", expected))
        found = await other.get(A)
        assert found is not None
        assert (found.value, found.version) == (b"2", version)
    losing.lose(is_applied)
    written = await store.apply(
        Step((Check(B, Expect.ABSENT),), (Put(A, b"3", version), PutSequential(Key("/p/s", "p"), b"s")))
    )
    assert [record.value for record in written.records] == [b"3", b"s"]
    assert await other.get(A) == written.records[0]
    losing.lose(is_applied)
    key = (await store.apply(Step(puts=(PutSequential(Key("/p/s", "p"), b"t"),)))).records[0].key
    page = await other.scan(KeyRange("/p/s/", "/p/s0"), 10)
    assert [record.key for record in page.records] == [written.records[1].key, key]
    losing.lose(is_applied)
    await store.delete(A, Expect.ANY)
    assert await other.get(A) is None


async def test_a_request_that_never_arrived_is_sent_again(
    store: ZooKeeperMetadataStore, other: ZooKeeperMetadataStore, losing: Losing
) -> None:
    """A removal with a version is repeated, too, because the existing record shows that it was not applied."""
    version = await store.put(Put(A, b"1", Expect.ABSENT, ENTRIES))
    losing.lose(is_applied=False)
    await store.delete(A, version)
    assert await other.get(A) is None


async def test_a_race_that_was_lost_meanwhile_is_told_as_such(
    store: ZooKeeperMetadataStore, other: ZooKeeperMetadataStore, losing: Losing
) -> None:
    """The write was not applied, and the record has changed since."""
    version = await store.put(Put(A, b"1", Expect.ABSENT))
    await store.put(Put(B, b"1", Expect.ABSENT))
    losing.lose(False, lambda: other.put(Put(A, b"other", Expect.ANY)))
    # The second record of the batch is as it was, so the batch was not applied.
    with pytest.raises(VersionMismatch):
        await store.apply(Step(puts=(Put(A, b"2", version), Put(B, b"2", Expect.ANY))))


async def test_what_others_wrote_over_cannot_be_told(
    store: ZooKeeperMetadataStore, other: ZooKeeperMetadataStore, losing: Losing
) -> None:
    """The outcome is unknown, because reading shows the same in both cases."""
    await store.put(Put(A, b"1", Expect.ABSENT))
    for is_applied in (True, False):
        losing.lose(is_applied, lambda: other.put(Put(A, b"other", Expect.ANY)))
        with pytest.raises(OutcomeUnknown):
            await store.put(Put(A, b"2", Expect.ANY))
    losing.lose(True, lambda: other.delete(A, Expect.ANY))
    with pytest.raises(OutcomeUnknown):
        await store.put(Put(A, b"3", Expect.ANY))
    # Made and removed, or never made: something happened below the nodes above it.
    losing.lose(True, lambda: other.delete(A, Expect.ANY))
    with pytest.raises(OutcomeUnknown):
        await store.put(Put(A, b"4", Expect.ABSENT))


async def test_a_removal_of_a_version_that_is_gone_cannot_be_told(
    store: ZooKeeperMetadataStore, other: ZooKeeperMetadataStore, losing: Losing
) -> None:
    """Another process may have removed it."""
    version = await store.put(Put(A, b"1", Expect.ABSENT))
    losing.lose(is_applied=True)
    with pytest.raises(OutcomeUnknown):
        await store.apply(Step(deletes=(Delete(A, version),)))
    assert await other.get(A) is None


async def test_a_removal_of_whatever_there_is_is_done_once(
    store: ZooKeeperMetadataStore, other: ZooKeeperMetadataStore, losing: Losing
) -> None:
    """A record that another process created after the removal is kept."""
    await store.put(Put(A, b"1", Expect.ABSENT))
    losing.lose(True, lambda: other.put(Put(A, b"again", Expect.ABSENT)))
    with pytest.raises(OutcomeUnknown):
        await store.delete(A, Expect.ANY)
    found = await other.get(A)
    assert found is not None
    assert found.value == b"again"


async def test_a_batch_of_removals_that_was_applied_is_not_said_to_be_refused(
    store: ZooKeeperMetadataStore, other: ZooKeeperMetadataStore, losing: Losing
) -> None:
    """Its check fails now, but succeeded when the batch was applied."""
    await store.put(Put(A, b"1", Expect.ABSENT))
    version = await store.put(Put(B, b"1", Expect.ABSENT))
    batch = Step((Check(B, version),), deletes=(Delete(A, Expect.ANY),))
    losing.lose(True, lambda: other.put(Put(B, b"2", version)))
    with pytest.raises(OutcomeUnknown):
        await store.apply(batch)
    assert await other.get(A) is None


async def test_what_was_to_be_removed_and_still_lives_was_not_removed(
    store: ZooKeeperMetadataStore, other: ZooKeeperMetadataStore, losing: Losing
) -> None:
    """Another process overwrote the record: the batch was not applied, and gets the error of its check."""
    await store.put(Put(A, b"1", Expect.ABSENT))
    version = await store.put(Put(B, b"1", Expect.ABSENT))

    async def meanwhile() -> None:
        await other.put(Put(A, b"2", Expect.ANY))
        await other.put(Put(B, b"2", version))

    losing.lose(False, meanwhile)
    with pytest.raises(VersionMismatch):
        await store.apply(Step((Check(B, version),), deletes=(Delete(A, Expect.ANY),)))
