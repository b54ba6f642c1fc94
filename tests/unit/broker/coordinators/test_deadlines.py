"""The pure decisions about a process's timers."""

from __future__ import annotations

from itertools import pairwise

from txnframework.broker.coordinators.deadlines import AT_ONCE_MAX, RETRY_MS_MAX, STALE_MAX, Deadlines
from txnframework.errors import Unavailable
from txnframework.model import TxnID
from txnframework.testing.clock import START_MS, VirtualEnvironment, run_ready


async def test_timers_end_what_is_overdue() -> None:
    """Timers end overdue transactions in time, the nearest deadline first.

    Ended ones are skipped, failures are left to sweeps.
    """
    clock = VirtualEnvironment()
    ended: list[tuple[int, int]] = []

    async def abort(txn_id: TxnID) -> None:
        ended.append((clock.now_ms() - START_MS, txn_id.number))
        if txn_id.number == 2:
            raise Unavailable("the store is away")

    deadlines = Deadlines(clock, 100, abort)
    deadlines.start()
    for number, due_ms in ((1, 5_000), (2, 300), (3, 400), (4, 60_000)):
        deadlines.set(TxnID(0, number), START_MS + due_ms)
    await run_ready()
    deadlines.cancel(TxnID(0, 3))
    await clock.advance(5_000)
    assert ended == [(300, 2), (5_000, 1)]
    for number in range(10, 10 + 3 * AT_ONCE_MAX):
        deadlines.set(TxnID(0, number), START_MS + 6_000)
    await clock.advance(1_000)
    assert len(ended) == 2 + 3 * AT_ONCE_MAX
    assert len(deadlines) == 1
    await deadlines.stop()
    await clock.advance(60_000)
    assert len(ended) == 2 + 3 * AT_ONCE_MAX


async def test_a_hastened_abort_is_retried_until_it_works() -> None:
    """A failed abort is retried soon, until one succeeds or the deadline passes."""
    clock = VirtualEnvironment()
    attempts: dict[int, list[int]] = {1: [], 2: []}
    available_ms = 10_000

    async def abort(txn_id: TxnID) -> None:
        at_ms = clock.now_ms() - START_MS
        attempts[txn_id.number].append(at_ms)
        if txn_id.number == 2 or at_ms < available_ms:
            raise Unavailable("the store is away")
        deadlines.cancel(txn_id)

    deadlines = Deadlines(clock, 100, abort)
    deadlines.start()
    deadlines.hasten(TxnID(0, 3))  # it has no timer
    for number in attempts:
        deadlines.set(TxnID(0, number), START_MS + 60_000)
        deadlines.hasten(TxnID(0, number))
        deadlines.hasten(TxnID(0, number))
    await clock.advance(200_000)
    for tries in attempts.values():
        assert len(tries) == len(set(tries))
        assert all(later - earlier <= RETRY_MS_MAX for earlier, later in pairwise((0, *tries)))
    assert attempts[1][-2] < available_ms <= attempts[1][-1]
    assert attempts[2][-1] == 60_000
    assert not any(deadlines.has(TxnID(0, number)) for number in attempts)
    await deadlines.stop()


async def test_timers_are_bounded() -> None:
    """The number of timers is limited, and timers of ended transactions are removed early."""
    clock = VirtualEnvironment()

    async def abort(_: TxnID) -> None: ...

    deadlines = Deadlines(clock, 2, abort)
    for number in range(5):
        deadlines.set(TxnID(0, number), START_MS + 60_000)
    assert len(deadlines) == 2
    for number in range(10 * STALE_MAX):
        deadlines.cancel(TxnID(0, number))
        deadlines.set(TxnID(0, number), START_MS + 60_000)
        deadlines.cancel(TxnID(0, number))
    assert len(deadlines) == 0
    assert len(deadlines._queue) <= STALE_MAX + 1
