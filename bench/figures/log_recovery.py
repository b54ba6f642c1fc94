"""The time to open a log, by the number of open and of finished transactions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

from measurement import Found, Run, Target, interleaved, opened, p50, timed

from txnframework import Client
from txnframework.model import Position, State, TxnID
from txnframework.model.ids import LOG_FAMILY_BIT
from txnframework_legacy.administration import opened as opened_log
from txnframework_legacy.coordinator.log import TransactionLog, log_name
from txnframework_legacy.coordinator.records import AnyRecord, Forget, New, Update
from txnframework_legacy.log import BatchedLogWriter, Batching
from txnframework_legacy.log.switches import LogKind
from txnframework_legacy.pending_acks.log import PendingAckLog
from txnframework_legacy.pending_acks.records import AckDocument, Acked, Settled
from txnframework_legacy.pending_acks.store import log_name as ack_log_name

TOGETHER = 250
LEDGER_RECORDS = 10_000
TOPIC = "persistent://public/default/t"
Log = TransactionLog | PendingAckLog


async def recovery_by_history(run: Run) -> list[Found]:
    """
    Time to read both kinds of logs, written in batches as hosts do; that of many finished over that of few.

    The open ones begin all the while, as in a system that is used: when the writing ends the last so many are open.
    """
    few, many = run.size(100, 20), run.size(1_000, 200)
    short, long = run.size(2_000, 300), run.size(20_000, 2_000)
    found: list[Found] = []
    for kind, name in ((LogKind.TRANSACTIONS, "transaction log"), (LogKind.PENDING_ACKS, "log of acknowledgments")):
        cases = {
            "few open": (few, short, False),
            "many open": (many, short, False),
            "many open, long": (many, long, False),
            "an old one open, long": (few, long, True),
        }
        async with opened(run.backend.config(kind.value)) as client:
            names: dict[str, str] = {}
            for number, (case, (count, finished, old)) in enumerate(cases.items()):
                run.progress(f"{name}: writing {finished:,}")
                names[case] = _name(kind, number)
                async with _log(client, kind, names[case]) as log:
                    await _write(log, count, finished, keep_first=old)
            taken: dict[str, list[float]] = {case: [] for case in cases}
            for number in range(run.rounds):
                run.progress(f"{name}: round {number + 1} of {run.rounds}")
                sides = [_reading(client, kind, names[case]) for case in cases]
                for case, seconds in zip(cases, await interleaved(run.size(3, 1), *sides), strict=True):
                    taken[case].append(p50(seconds))
        notes = {f"{case}_ms": round(p50(seconds) * 1e3, 1) for case, seconds in taken.items()}

        def ratios(one: str, other: str, taken: dict[str, list[float]] = taken) -> tuple[float, ...]:
            return tuple(mine / theirs for mine, theirs in zip(taken[one], taken[other], strict=True))

        after = f"after {long:,} finished / after {short:,}"
        found += [
            Found(
                f"reading a {name}, {many:,} open / {few:,} open", ratios("many open", "few open"), Target(15), notes
            ),
            Found(f"reading a {name}, {many:,} open, {after}", ratios("many open, long", "many open"), Target(5)),
            Found(
                f"reading a {name}, one open all the while, {after}",
                ratios("an old one open, long", "few open"),
            ),
        ]
    return found


def _name(kind: LogKind, number: int) -> str:
    if kind is LogKind.TRANSACTIONS:
        return log_name(LOG_FAMILY_BIT + number)
    return ack_log_name(TOPIC, 1, str(number))


@asynccontextmanager
async def _log(client: Client, kind: LogKind, name: str) -> AsyncIterator[Log]:
    """Create a log that is written in batches."""
    ledger = await client.host.ledgers.create(name)
    writer = BatchedLogWriter(ledger, client.host.environment, Batching(enabled=True))
    log: Log = PendingAckLog(ledger, writer)
    if kind is LogKind.TRANSACTIONS:
        log = TransactionLog(int(name.rpartition(":")[2], 16), ledger, writer)
    try:
        yield log
    finally:
        await log.close()


async def _write(log: Log, count: int, finished: int, *, keep_first: bool) -> None:
    """Begin many transactions, each of which ends when ``count`` others have begun; shrink the log as sweeps do."""
    write = _transaction_steps(log) if isinstance(log, TransactionLog) else _ack_steps(log)
    for start in range(0, finished + count, TOGETHER):
        numbers = range(start, min(start + TOGETHER, finished + count))
        await asyncio.gather(*(write(number, False) for number in numbers))
        ending = [number - count for number in numbers if number >= count + keep_first]
        await asyncio.gather(*(write(number, True) for number in ending))
        if isinstance(log, TransactionLog) and ending:
            await log.append(Forget(numbers=ending))
        await log.shrink(LEDGER_RECORDS)


def _transaction_steps(log: TransactionLog) -> Callable[[int, bool], Awaitable[None]]:
    async def step(number: int, ends: bool) -> None:
        if not ends:
            await log.append(New(number=number, created_ms=0, deadline_ms=1))
            return
        path = (State.OPEN, State.COMMITTING, State.COMMITTED)
        for before, after in pairwise(path):
            record: AnyRecord = Update(number=number, expected=before.value, state=after.value, at_ms=1, branches=[0])
            await log.append(record)

    return step


def _ack_steps(log: PendingAckLog) -> Callable[[int, bool], Awaitable[None]]:
    async def step(number: int, ends: bool) -> None:
        txn = str(TxnID(LOG_FAMILY_BIT, number))
        if ends:
            await log.append(Settled(txn=txn, upto=str(Position(1 << 40, 0))))
            return
        acks = [AckDocument(position=str(Position(1, number)))]
        await log.append(Acked(txn=txn, branch=0, token=number, incarnation=1, acks=acks))

    return step


def _reading(client: Client, kind: LogKind, name: str) -> Callable[[], Awaitable[float]]:
    """Return a side that opens the log anew and reads what a process needs."""

    async def once() -> float:
        host = client.host
        async with opened_log(host.ledgers, host.environment, kind, name) as (_, log):
            return await timed(log.catch_up())

    return once
