"""One of several writing processes: ``python writer.py <url> <producer>``; prints each entry once it is confirmed."""

from __future__ import annotations

import asyncio
import sys
from itertools import count

from txnframework.environment import SystemEnvironment
from txnframework.errors import LedgerClosed, LedgerSealed
from txnframework.interfaces import IManagedLedger
from txnframework.model import Append, Branch, ProducerSequence, TxnID
from txnframework_sql import LedgerOptions, open_ledger_store

WRITERS = 4
ENTRIES_MAX = 40


async def main(url: str, producer: str) -> None:
    """Append until the ledger is sealed: half of the writers name a ledger, half do not."""
    store = await open_ledger_store(url, SystemEnvironment(), LedgerOptions(ledger_entries_max=ENTRIES_MAX), None)
    ledger = await store.open("shared")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    numbers = count()
    await asyncio.gather(*(write(ledger, producer, numbers, names_one=at % 2 == 0) for at in range(WRITERS)))
    await store.close()


async def write(ledger: IManagedLedger, producer: str, numbers: count[int], *, names_one: bool) -> None:
    while True:
        first = next(numbers) * 3
        branch = Branch(TxnID(7, first), 1) if names_one else None
        entries = tuple(
            Append(f"{producer}:{number}".encode(), 1, branch, ProducerSequence(producer, number, number))
            for number in range(first, first + 3)
        )
        try:
            while True:
                ledger_id = (await ledger.tail()).open_ledger_id if names_one else None
                try:
                    appended = await ledger.append(entries, ledger_id)
                except LedgerClosed:
                    continue
                break
        except LedgerSealed:
            return
        for entry, one in zip(entries, appended, strict=True):
            sys.stdout.write(f"{one.position} {entry.data.decode()}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
