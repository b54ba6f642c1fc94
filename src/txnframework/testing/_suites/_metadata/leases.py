"""Rules of leases, and of sessions that expire by the clock."""

from __future__ import annotations

import asyncio
import json

import pytest

from txnframework.errors import LeaseHeld, VersionMismatch
from txnframework.interfaces import ILease, IMetadataStore
from txnframework.model import Check, Step
from txnframework.model.paths import lease_key, lease_of, leases_range
from txnframework.testing._suites._metadata._case import MetadataStoreRules
from txnframework.testing.capabilities import requires
from txnframework.testing.harness import Crashing, Disconnecting, Expiring


class LeaseRules(MetadataStoreRules):
    """A lease has at most one holder, as far as any client can know."""

    async def test_lease_keeps_the_interface(self) -> None:
        """A lease and its watch have all methods and attributes of their interfaces."""
        from txnframework.interfaces import IWatch
        from txnframework.plugin import verify_provider

        async with self.data.open() as store:
            lease = await store.acquire_lease("name", "one")
            verify_provider(ILease, lease)
            verify_provider(IWatch, await store.watch(lease.key))

    async def test_held_by_one(self) -> None:
        """
        While a session holds a lease, another session gets LeaseHeld immediately, with the holder's name and a key to
        watch.

        If this fails, check that the lease's record is created by a put that expects absence.
        """
        async with self.data.open() as one, self.data.open() as two:
            lease = await one.acquire_lease("name", "holder one")
            record = await two.get(lease.key)
            assert record is not None
            assert record.version == lease.version
            with pytest.raises(LeaseHeld) as caught:
                await self.soon(two.acquire_lease("name", "holder two"))
            assert (caught.value.name, caught.value.holder, caught.value.key) == ("name", "holder one", lease.key)

    async def test_record_shows_in_scans(self) -> None:
        """
        While a lease is held, scans return its record at the key of its name, with the holder's name in its value.
        Watches on a range of leases wake.
        """
        async with self.data.open() as one, self.data.open() as two:
            watch = await two.watch(leases_range("of many: "))
            first = await one.acquire_lease("of many: ~", "one")
            await self.soon(watch.changed())
            await one.acquire_lease("of many, another", "one")
            await two.acquire_lease("of many: a/b", "two")
            found = (await two.scan(leases_range("of many: "), 10)).records
            assert [lease_of(record.key.path) for record in found] == ["of many: a/b", "of many: ~"]
            assert (first.key, first.version) in {(record.key, record.version) for record in found}
            assert [json.loads(record.value)["holder"] for record in found] == ["two", "one"]
            await first.release()
            found = (await two.scan(leases_range("of many: "), 10)).records
            assert [record.key for record in found] == [lease_key("of many: a/b")]

    async def test_one_of_two_takers_wins(self) -> None:
        """Of two sessions that acquire a lease at the same time, exactly one gets it."""
        async with self.data.open() as one, self.data.open() as two:
            outcomes = await asyncio.gather(
                one.acquire_lease("name", "one"), two.acquire_lease("name", "two"), return_exceptions=True
            )
            errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
            assert [type(error) for error in errors] == [LeaseHeld]

    async def test_asking_again_succeeds(self) -> None:
        """A holder that acquires its lease again in the same session, for example after a lost reply, gets it."""
        async with self.data.open() as store:
            first = await store.acquire_lease("name", "one")
            again = await store.acquire_lease("name", "one")
            assert again.key == first.key
            assert again.fencing >= first.fencing

    async def test_names_are_independent(self) -> None:
        """Leases with similar names are independent."""
        names = ("a", "a/b", "a b", "ä", "a-2", "A", "%", "a:b")
        async with self.data.open() as one, self.data.open() as two:
            for name in names:
                await one.acquire_lease(name, f"holder of {name}")
            for name in names:
                with pytest.raises(LeaseHeld) as caught:
                    await two.acquire_lease(name, "two")
                assert caught.value.holder == f"holder of {name}"

    async def test_released(self) -> None:
        """
        After a release, another session gets the lease with a higher fencing number, and watches on its key wake.

        A release may be repeated, and never takes the lease from the next holder.
        """
        async with self.data.open() as one, self.data.open() as two:
            lease = await one.acquire_lease("name", "one")
            watch = await two.watch(lease.key)
            await lease.release()
            await self.soon(watch.changed())
            await self.soon(lease.lost())
            following = await self.take(two)
            assert following.fencing > lease.fencing
            await lease.release()
            with pytest.raises(LeaseHeld):
                await one.acquire_lease("name", "one")

    async def test_broken(self) -> None:
        """
        A broken lease is free immediately and gets a higher fencing number; a release by the former holder has no
        effect.

        Watches on its record wake. Breaking another version, or a lease that is not held, changes nothing.
        """
        async with self.data.open() as one, self.data.open() as two:
            lease = await one.acquire_lease("name", "one")
            other = await one.acquire_lease("other", "one")
            watch = await one.watch(lease.key)
            await two.break_lease("unheld", lease.version)
            await two.break_lease("name", lease.version + 1_000_000)
            with pytest.raises(LeaseHeld):
                await two.acquire_lease("name", "two")
            await two.break_lease("name", lease.version)
            await two.break_lease("name", lease.version)
            await self.soon(watch.changed())
            assert await one.get(lease.key) is None
            following = await two.acquire_lease("name", "two")
            assert following.fencing > lease.fencing
            await two.break_lease("name", lease.version)
            await lease.release()
            with pytest.raises(LeaseHeld):
                await one.acquire_lease("name", "one")
            record = await two.get(other.key)
            assert record is not None
            assert record.version == other.version
            await following.release()
            again = await one.acquire_lease("name", "one")
            assert again.fencing > following.fencing

    async def test_ends_with_its_session(self) -> None:
        """
        Closing the store ends the session's leases, and ``lost`` returns; the next holder has a higher fencing number.
        """
        async with self.data.open() as two:
            async with self.data.open() as one:
                lease = await one.acquire_lease("name", "one")
                async with self.started(lease.lost()) as lost:
                    assert not lost.done(), "a lease that is held is not lost"
                    await one.close()
                    await self.soon(lost)
            following = await self.take(two)
            assert following.fencing > lease.fencing

    async def test_fencing_grows_over_a_restart(self) -> None:
        """Fencing numbers grow even after all clients were closed and the lease's record was removed."""
        fencing: list[int] = []
        for _ in range(3):
            async with self.data.open() as store:
                lease = await store.acquire_lease("name", "one")
                fencing.append(lease.fencing)
                await lease.release()
        assert fencing == sorted(set(fencing))

    @requires(Crashing)
    async def test_crash_ends_it(self) -> None:
        """
        After the holder's crash, watches on the lease wake, and another session gets it with a higher fencing number.

        If this fails, check that the lease's record is bound to the session, not to a clean-up by the client.
        """
        harness = self.data
        assert isinstance(harness, Crashing)
        async with harness.open() as two:
            async with harness.open() as one:
                lease = await one.acquire_lease("name", "one")
                watch = await two.watch(lease.key)
                await harness.crash(one)
                await self.soon(watch.changed())
            following = await self.take(two)
            assert following.fencing > lease.fencing

    async def test_check_refuses_an_earlier_holder(self) -> None:
        """
        A batch that checks the lease's key and version is applied while the lease is held, and refused afterwards.

        If this fails, check that the record of a lease never repeats the version of an earlier holder.
        """
        async with self.data.open() as one, self.data.open() as two:
            lease = await one.acquire_lease("name", "one")
            batch = Step(checks=(Check(lease.key, lease.version),))
            await one.apply(batch)
            await lease.release()
            with pytest.raises(VersionMismatch):
                await one.apply(batch)
            await self.take(two)
            with pytest.raises(VersionMismatch):
                await one.apply(batch)

    async def take(self, store: IMetadataStore) -> ILease:
        """Acquire the lease, and watch its key while the backend ends the last holder's session."""
        __tracebackhide__ = True
        last: LeaseHeld | None = None

        async def attempt() -> ILease:
            nonlocal last
            while True:
                try:
                    return await store.acquire_lease("name", "next")
                except LeaseHeld as held:
                    last = held
                    watch = await store.watch(held.key)
                    if await store.get(held.key) is not None:
                        await watch.changed()
                    await watch.close()

        return await self.soon(attempt(), lambda: last)


STEPS = 12
"""The number of steps in which a session's time passes; the holder and the others act between the steps."""
LIVES = 3


class SessionRules(MetadataStoreRules):
    """A session lives as long as its client, and no lease outlives its session."""

    @requires(Expiring)
    async def test_kept_alive_while_it_is_open(self) -> None:
        """
        An idle client keeps its lease for several times the life of a silent session.

        If this fails, check that the client sends its heartbeats in time, without being called.
        """
        async with self.data.open() as one, self.data.open() as two:
            lease = await one.acquire_lease("name", "one")
            async with self.started(lease.lost()) as lost:
                for step in range(LIVES * STEPS):
                    await self._pass_a_step()
                    passed = f"after {step + 1}/{STEPS} of a session's life"
                    assert not lost.done(), f"a lease is lost {passed}, though its client is there"
                    with pytest.raises(LeaseHeld):
                        await two.acquire_lease("name", "two")
            record = await two.get(lease.key)
            assert record is not None
            assert record.version == lease.version

    @requires(Expiring, Disconnecting)
    async def test_silent_holder_knows_before_others(self) -> None:
        """
        ``lost`` returns on a disconnected client before another client gets the lease.

        If this fails, check that ``lost`` follows the client's own clock, not an answer of the backend.
        """
        harness = self.data
        assert isinstance(harness, Disconnecting)
        async with harness.open() as one, harness.open() as two:
            lease = await one.acquire_lease("name", "one")
            async with self.started(lease.lost()) as lost:
                await harness.cut(one)
                following = await self._taken(two)
                await self.data.settle()
                assert lost.done(), "another has the lease, and the first holder relies on it"
            assert following.fencing > lease.fencing
            await harness.restore(one)

    async def _taken(self, store: IMetadataStore) -> ILease:
        """Acquire the lease after the silent holder's session has expired."""
        for _ in range(LIVES * STEPS):
            await self._pass_a_step()
            try:
                return await store.acquire_lease("name", "two")
            except LeaseHeld as held:
                last = held
        pytest.fail(f"a session that was silent for {LIVES} times its life did not end: {last}")

    async def _pass_a_step(self) -> None:
        assert isinstance(self.data, Expiring)
        await self.data.pass_time(self.data.session_ms // STEPS)
        await self.data.settle()
