"""Own ledgers of large transactions, one each, beside the sidecar."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from txnframework.errors import Closed, CorruptEntry, LedgerNotFound
from txnframework.interfaces import ILedgerStore, IManagedLedger
from txnframework.model import Append, EntryRange, LedgerEntry, Limit, Position, TxnID
from txnframework_legacy.ledger_names import NAMES_MAX, SIDECAR, ledger_name, parse_ledger_name
from txnframework_sidecar.parts import Span


async def read_span(ledger: IManagedLedger, span: Span) -> list[LedgerEntry]:
    """
    Return every entry of a span.

    :raises CorruptEntry: an entry of the span was never stored.
    """
    found: list[LedgerEntry] = []
    after = span.after
    while after < span.upto:
        page = await ledger.read(EntryRange(after, span.upto), Limit(span.last - span.first + 1))
        if not page:
            raise CorruptEntry(span.upto, "a marker lists it, but it does not exist", ledger.name)
        found += page
        after = page[-1].position
    return found


_PREFIX = "own-"


@dataclass
class _Open:
    """An open ledger, the number of its current users, and the lock for appends."""

    ledger: IManagedLedger
    ledger_id: int
    users: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class OwnLedgers:
    """
    Appends to, reads and deletes these ledgers. A ledger's name contains the transaction id.

    A message in such a ledger counts only if an entry of the sidecar refers to it. Messages are therefore appended here
    first, and referred to afterwards. After a crash between the two, nothing was sent. A retry stores the messages
    again, and only the new copies are referred to.
    """

    def __init__(self, store: ILedgerStore, topic: IManagedLedger, segment: str, life: int, open_max: int) -> None:
        self._store = store
        self._topic = topic
        self._segment = segment
        self._life = life
        self._open_max = open_max
        self._opened: OrderedDict[TxnID, _Open] = OrderedDict()
        self._opening = asyncio.Lock()

    async def append(self, txn_id: TxnID, entries: Sequence[Append]) -> list[Position]:
        """
        Append in the order of the calls and return the positions; the first append creates the ledger.

        :raises LedgerNotFound: the transaction is settled here, or the topic was deleted.
        """
        async with self._at(txn_id, make=True) as own, own.turn:
            # The references carry the sequences, and the sidecar compares those.
            alone = tuple(Append(entry.data, entry.messages, entry.branch) for entry in entries)
            return [one.position for one in await own.ledger.append(alone, own.ledger_id)]

    async def read(self, txn_id: TxnID, span: Span) -> list[LedgerEntry]:
        """
        Return every entry of a span.

        :raises LedgerNotFound: no marker referred to the ledger any more, and it was deleted.
        """
        async with self._at(txn_id, make=False) as own:
            return await read_span(own.ledger, span)

    async def transactions(self) -> AsyncIterator[TxnID]:
        """Yield the transactions that have an own ledger."""
        prefix = ledger_name(SIDECAR, self._segment, self._life, _PREFIX)
        after = ""
        while names := await self._store.list_names(prefix, after, NAMES_MAX):
            for name in names:
                yield TxnID.parse(parse_ledger_name(name)[2].removeprefix(_PREFIX))
            after = names[-1]

    async def drop(self, txn_id: TxnID) -> None:
        """Delete the own ledger of a transaction; idempotent."""
        held = self._opened.pop(txn_id, None)
        if held is not None and not held.users:
            await held.ledger.close()
        await self._store.delete(self._name(txn_id), None)

    async def close(self) -> None:
        """Close all open ledgers."""
        while self._opened:
            _, held = self._opened.popitem()
            await held.ledger.close()

    def _name(self, txn_id: TxnID) -> str:
        return ledger_name(SIDECAR, self._segment, self._life, f"{_PREFIX}{txn_id}")

    @asynccontextmanager
    async def _at(self, txn_id: TxnID, *, make: bool) -> AsyncIterator[_Open]:
        """Keep a ledger open while it is used."""
        own = self._opened.get(txn_id)
        if own is None:
            async with self._opening:
                own = self._opened.get(txn_id)
                if own is None:
                    own = self._opened[txn_id] = await self._open(txn_id, make=make)
        self._opened.move_to_end(txn_id)
        own.users += 1
        try:
            yield own
        except (LedgerNotFound, Closed) as error:
            self._opened.pop(txn_id, None)
            raise LedgerNotFound(own.ledger.name) from error
        finally:
            own.users -= 1
            await self._close_unused()

    async def _open(self, txn_id: TxnID, *, make: bool) -> _Open:
        name = self._name(txn_id)
        ledger = await (self._store.create(name) if make else self._store.open(name))
        if make:
            # A topic's deletion removes its ledger first, and the ledgers beside it afterwards: see ``make_sidecar``.
            await self._topic.tail()
        return _Open(ledger, (await ledger.tail()).open_ledger_id)

    async def _close_unused(self) -> None:
        """Close the least recently used ledgers above the bound, as far as they are unused."""
        idle = [txn_id for txn_id, own in self._opened.items() if not own.users]
        for txn_id in idle[: max(0, len(self._opened) - self._open_max)]:
            await self._opened.pop(txn_id).ledger.close()
