"""Writers that continue through failures, and record what was confirmed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from txnframework.errors import OutcomeUnknown, Unavailable, VersionMismatch
from txnframework.interfaces import IManagedLedger, IMetadataStore
from txnframework.model import Append, Expect, IndexEntry, Key, ProducerSequence, Put, Step

BY_WRITER = "by-writer"
PARTITION = "pairs"
PAUSE_S = 0.02
"""Pause between two attempts while there is no server: the tests run in real time, as the server does."""


@dataclass
class Told:
    """The confirmations that writers have received."""

    confirmed: dict[str, str] = field(default_factory=dict)
    in_doubt: int = 0
    refused: int = 0
    enough: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: bool = False
    enough_at: int = 0

    def note(self, name: str, value: str) -> None:
        """Record a confirmation."""
        self.confirmed[name] = value
        if len(self.confirmed) >= self.enough_at:
            self.enough.set()

    async def more(self, count: int) -> None:
        """Return when this many more confirmations have been received."""
        self.enough_at = len(self.confirmed) + count
        self.enough.clear()
        await self.enough.wait()

    async def through(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Retry a call until it is answered; return False if it may have been applied."""
        while True:
            try:
                await work()
            except OutcomeUnknown:
                self.in_doubt += 1
                return False
            except Unavailable:
                self.refused += 1
                await asyncio.sleep(PAUSE_S)
            else:
                return True


async def write_pairs(store: IMetadataStore, writer: str, told: Told) -> None:
    """
    Write pairs of records, each pair in one batch, with index entries, until the end is requested.

    A write in doubt is read once the server answers again: if it is found, it was done. If it is not found, it may
    still appear where the server continues without the connection; so it is decided by writing the same again.
    """
    number = 0
    while not told.is_over:
        number += 1
        name = f"{writer}-{number:06d}"
        left, right = (Key(f"/{side}/{name}", PARTITION) for side in ("left", "right"))
        index = (IndexEntry(BY_WRITER, writer.encode()),)
        batch = Step(puts=tuple(Put(key, b"%d" % number, Expect.ABSENT, index) for key in (left, right)))

        async def apply(batch: Step = batch) -> None:
            await store.apply(batch)

        is_in_doubt = False
        while True:
            try:
                if await told.through(apply):
                    break
            except VersionMismatch:
                assert is_in_doubt, f"{name} is there, and every attempt was told to have changed nothing"
                break
            is_in_doubt = True
            if await _is_there(store, left, told):
                break
        told.note(name, str(number))


async def _is_there(store: IMetadataStore, key: Key, told: Told) -> bool:
    found: list[bool] = []

    async def look() -> None:
        found.append(await store.get(key) is not None)

    await told.through(look)
    return found[-1]


async def append(ledger: IManagedLedger, producer: str, told: Told) -> None:
    """Append numbered entries, one after the other, until the end is requested; repeat an append in doubt."""
    number = 0
    while not told.is_over:
        number += 1
        data = f"{producer}:{number}"
        entry = Append(data.encode(), sequence=ProducerSequence(producer, number, number))
        positions: list[str] = []

        async def send(entry: Append = entry, positions: list[str] = positions) -> None:
            (appended,) = await ledger.append((entry,), None)
            positions.append(str(appended.position))

        while not await told.through(send):
            pass
        told.note(data, positions[-1])
