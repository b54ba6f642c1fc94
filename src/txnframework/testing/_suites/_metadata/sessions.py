"""Rules of sessions that expire by the clock."""

from __future__ import annotations

import pytest

from txnframework.errors import LeaseHeld
from txnframework.interfaces import ILease, IMetadataStore
from txnframework.testing._suites._metadata._case import MetadataStoreRules
from txnframework.testing.capabilities import requires
from txnframework.testing.harness import Disconnecting, Expiring

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
