"""Rules of ``apply`` for records."""

from __future__ import annotations

import asyncio

import pytest

from txnframework.errors import VersionMismatch
from txnframework.interfaces import IMetadataStore
from txnframework.model import (
    Applied,
    Check,
    Delete,
    Expect,
    IndexRange,
    Key,
    KeyRange,
    Put,
    PutSequential,
    Reach,
    Step,
)
from txnframework.testing._suites._metadata._case import (
    WIDE,
    MetadataStoreRules,
    entries,
    paths,
    scan_all,
    scan_kinds,
    value_of,
)
from txnframework.testing.capabilities import requires

PARTITION = "p"


def key(name: str) -> Key:
    """Return a key in the partition of these tests."""
    return Key(f"/batch/{name}", PARTITION)


class BatchRules(MetadataStoreRules):
    """A batch of steps in one partition is applied as a whole or not at all."""

    async def test_every_step_is_applied(self) -> None:
        """A batch applies all its puts, sequential puts and deletes, and returns the records of its puts in order."""
        async with self.data.open() as store:
            old = await store.put(Put(key("old"), b"old", Expect.ABSENT, entries(b"k")))
            checked = await store.put(Put(key("checked"), b"", Expect.ABSENT))
            batch = Step(
                checks=(Check(key("checked"), checked), Check(key("absent"), Expect.ABSENT)),
                puts=(
                    Put(key("one"), b"1", Expect.ABSENT, entries(b"k1")),
                    PutSequential(key("op"), b"2", entries(b"k2")),
                    PutSequential(key("op"), b"3"),
                    Put(key("any"), b"4", Expect.ANY),
                ),
                deletes=(Delete(key("old"), old), Delete(key("gone"), Expect.ANY)),
            )
            written = (await store.apply(batch)).records
            assert [record.value for record in written] == [b"1", b"2", b"3", b"4"]
            assert written[0].key == key("one")
            assert written[1].key != written[2].key
            for record in written:
                assert await store.get(record.key) == record
            assert await store.get(key("old")) is None
            assert [record.value for record in await scan_kinds(store)] == [b"1", b"2"]

    async def test_empty_batch(self) -> None:
        """A batch without steps succeeds and changes nothing."""
        async with self.data.open() as opened:
            assert await opened.apply(Step()) == Applied()

    @pytest.mark.parametrize("failing", ["check", "check of absence", "put", "create", "delete"])
    async def test_one_failing_step_fails_all(self, failing: str) -> None:
        """
        If the condition of one step fails, the batch changes nothing, and the error names the key of that step.

        If this fails, check that the backend tests all conditions inside its transaction, before it commits.
        """
        async with self.data.open() as store:
            stale = await store.put(Put(key("bad"), b"old", Expect.ABSENT, entries(b"k")))
            version = await store.put(Put(key("bad"), b"new", stale, entries(b"k")))
            keep = await store.put(Put(key("keep"), b"kept", Expect.ABSENT))
            good = Put(key("good"), b"", Expect.ABSENT, entries(b"k2"))
            sequential = PutSequential(key("op"), b"")
            removal = Delete(key("keep"), keep)
            steps = {
                "check": Step((Check(key("bad"), stale),), (good, sequential), (removal,)),
                "check of absence": Step((Check(key("bad"), Expect.ABSENT),), (good, sequential), (removal,)),
                "put": Step((), (good, sequential, Put(key("bad"), b"x", stale)), (removal,)),
                "create": Step((), (good, sequential, Put(key("bad"), b"x", Expect.ABSENT)), (removal,)),
                "delete": Step((), (good, sequential), (removal, Delete(key("bad"), stale))),
            }
            with pytest.raises(VersionMismatch) as caught:
                await store.apply(steps[failing])
            assert (caught.value.key, caught.value.actual) == (key("bad"), version)
            standing = await scan_all(store, KeyRange("/batch/", "/batch0"))
            assert [(record.key, record.value) for record in standing] == [(key("bad"), b"new"), (key("keep"), b"kept")]
            assert paths(await scan_kinds(store)) == ["/batch/bad"]

    async def test_checked_header_excludes_a_concurrent_decision(self) -> None:
        """
        When a change of a record is confirmed, each confirmed batch that checked the earlier version is visible.

        The framework relies on this rule to refuse operations of a transaction that ends at the same time. If this
        fails, check that a check conflicts with a write of the same record. A lock or a compare does, a plain read does
        not.
        """
        async with self.data.open() as writer, self.data.open() as decider:

            async def write(version: int, prefix: Key, turns_before: int) -> bool:
                await turns(turns_before)
                try:
                    await writer.apply(Step((Check(header, version),), (PutSequential(prefix, b""),)))
                except VersionMismatch:
                    return False
                return True

            async def decide(version: int, prefix: Key, turns_before: int) -> int:
                await turns(turns_before)
                await decider.put(Put(header, b"ended", version))
                return len(await scan_all(decider, KeyRange(f"{prefix.path}/", f"{prefix.path}0", PARTITION)))

            for number in range(12):
                header, prefix = key(f"header-{number}"), key(f"op-{number}")
                version = await writer.put(Put(header, b"open", Expect.ABSENT))
                written, seen = await asyncio.gather(
                    write(version, prefix, number % 4), decide(version, prefix, number // 4)
                )
                assert seen == written, f"confirmed: {written}, seen after the decision: {seen}"

    async def test_crossed_checks_do_not_both_succeed(self) -> None:
        """
        Of two batches that each check the record that the other one writes, at most one is applied.

        If this fails, check the isolation level: snapshot isolation alone lets both batches pass.
        """

        async def cross(store: IMetadataStore, check: Key, write: Key) -> bool:
            batch = Step((Check(check, Expect.ABSENT),), (Put(write, b"", Expect.ABSENT),))
            try:
                await store.apply(batch)
            except VersionMismatch:
                return False
            return True

        async with self.data.open() as one, self.data.open() as two:
            for number in range(12):
                left, right = key(f"left-{number}"), key(f"right-{number}")
                applied = await asyncio.gather(cross(one, left, right), cross(two, right, left))
                assert sum(applied) <= 1
                standing = [await one.get(left) is not None, await one.get(right) is not None]
                assert sum(standing) == sum(applied)

    async def test_cancelled_batch_is_whole_or_not_at_all(self) -> None:
        """A cancelled batch is applied as a whole or not at all."""
        async with self.data.open() as store:
            for number in range(6):
                names = [f"{number}-a", f"{number}-b"]
                batch = Step(puts=tuple(Put(key(name), b"", Expect.ABSENT) for name in names))
                task = asyncio.ensure_future(store.apply(batch))
                await turns(number)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await self.data.settle()
                first, second = [await store.get(key(name)) is not None for name in names]
                if second and not first:
                    # The batch may be applied late, between the two reads.
                    first = await store.get(key(names[0])) is not None
                assert first == second
            assert await value_of(store, "/absent") is None

    @requires(WIDE)
    async def test_batch_of_several_partitions_is_applied(self) -> None:
        """
        A step of several partitions writes records, in the order in which it names them.

        One path in two partitions is two records.
        """
        async with self.data.open() as store:
            places = [Key("/batch/same", partition) for partition in ("p", "q")]
            lefts = [Key(f"/batch/left-{number}", f"r{number % 2}") for number in range(10)]
            versions = [await store.put(Put(left, b"", Expect.ABSENT, entries(b"k1"))) for left in lefts]
            checked = await store.put(Put(Key("/batch/checked", "s"), b"", Expect.ABSENT))
            batch = Step(
                (Check(Key("/batch/checked", "s"), checked),),
                tuple(Put(place, place.partition.encode(), Expect.ABSENT, entries(b"k2")) for place in places),
                tuple(Delete(left, version) for left, version in zip(lefts, versions, strict=True)),
            )
            written = (await store.apply(batch)).records
            assert [record.key for record in written] == places
            assert [await store.get(place) for place in places] == [*written]
            assert {record.key for record in await scan_kinds(store)} == {*places}
            assert [await store.get(left) for left in lefts] == [None] * len(lefts)

    @requires(WIDE)
    @pytest.mark.parametrize("failing", ["check", "put", "delete"])
    async def test_one_failing_partition_fails_all(self, failing: str) -> None:
        """
        If the condition of a step in one partition fails, nothing is changed in any partition.

        If this fails, check that the backend makes one transaction of the whole batch, and not one for each partition.
        """
        async with self.data.open() as store:
            kept, bad = Key("/batch/kept", "p"), Key("/batch/bad", "q")
            version = await store.put(Put(kept, b"kept", Expect.ABSENT, entries(b"k")))
            stale = await store.put(Put(bad, b"old", Expect.ABSENT))
            current = await store.put(Put(bad, b"new", stale))
            new = Put(Key("/batch/new", "r"), b"", Expect.ABSENT, entries(b"k2"))
            steps = {
                "check": ((Check(bad, stale),), (new,), (Delete(kept, version),)),
                "put": ((), (new, Put(bad, b"x", stale)), (Delete(kept, version),)),
                "delete": ((), (new,), (Delete(kept, version), Delete(bad, stale))),
            }
            with pytest.raises(VersionMismatch) as caught:
                await store.apply(Step(*steps[failing]))
            assert (caught.value.key, caught.value.actual) == (bad, current)
            assert [record.key for record in await scan_kinds(store)] == [kept]
            found = await store.get(bad)
            assert found is not None
            assert found.value == b"new"

    async def test_a_step_is_no_wider_than_the_reach(self) -> None:
        """A step of several partitions, with a vacant range or with two parts for one key is refused otherwise."""
        async with self.data.open() as opened:
            apart = tuple(Put(Key("/batch/one", partition), b"", Expect.ABSENT) for partition in ("p", "q"))
            twice = (Put(key("one"), b"1", Expect.ANY), Put(key("one"), b"2", Expect.ANY))
            vacant = Step(puts=apart[:1], vacant=(IndexRange("kind", b"", b"k"),))
            refused = [Step(puts=twice)]
            refused += [Step(puts=apart)] if opened.reach is Reach.PARTITION else []
            refused += [vacant] if opened.reach is not Reach.DATABASE else []
            for step in refused:
                with pytest.raises(ValueError):  # noqa: PT011 - ``require_valid`` has the texts
                    await opened.apply(step)
            assert await scan_all(opened, KeyRange("/batch/", "/batch0")) == []
            assert (opened.location is not None) == (opened.reach is Reach.DATABASE)


async def turns(count: int) -> None:
    """Yield to other tasks ``count`` times, so that two calls meet at different points."""
    for _ in range(count):
        await asyncio.sleep(0)
