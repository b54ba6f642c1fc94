"""The ledgers that large transactions have of their own, one each, beside the sidecar."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from txnframework.errors import Closed, LedgerNotFound
from txnframework.interfaces import ILedgerStore, IManagedLedger
from txnframework.model import Append, LedgerEntry, Position, TxnID
from txnframework_legacy.beside import NAMES_MAX, SIDECAR, beside, what_of
from txnframework_sidecar.model.parts import Span
from txnframework_sidecar.reading import read_span

_PREFIX = "own-"


@dataclass
class _Open:
    """One that is open: how many are at it now, and whose turn it is to append."""

    ledger: IManagedLedger
    ledger_id: int
    users: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class OwnLedgers:
    """
    Writes, reads and drops them; a ledger is called after its transaction, so who knows the one finds the other.

    What stands in one counts for nothing by itself: the entry of the sidecar that refers to it does. So messages are
    appended here first and referred to then, and whoever is killed between the two has written nothing: sent again, the
    messages stand here a second time, and only those are referred to.
    """

    def __init__(self, store: ILedgerStore, topic: IManagedLedger, segment: str, life: int, open_max: int) -> None:
        self._store = store
        self._topic = topic
        self._segment = segment
        self._life = life
        self._open_max = open_max
        self._held: OrderedDict[TxnID, _Open] = OrderedDict()
        self._opening = asyncio.Lock()

    async def append(self, txn_id: TxnID, entries: Sequence[Append]) -> list[Position]:
        """
        Append in the order of the calls, and return where the entries stand; the ledger is made with the first.

        :raises LedgerNotFound: the transaction is over, or the topic was deleted.
        """
        async with self._at(txn_id, make=True) as own, own.turn:
            # The sidecar compares the sequences of what refers to these.
            alone = tuple(Append(entry.data, entry.messages, entry.branch) for entry in entries)
            return [one.position for one in await own.ledger.append(alone, own.ledger_id)]

    async def read(self, txn_id: TxnID, span: Span) -> list[LedgerEntry]:
        """
        Return every entry of a span.

        :raises LedgerNotFound: nobody referred to the ledger any more, and it was dropped.
        """
        async with self._at(txn_id, make=False) as own:
            return await read_span(own.ledger, span)

    async def transactions(self) -> AsyncIterator[TxnID]:
        """Go through the transactions that have a ledger of their own."""
        prefix = beside(SIDECAR, self._segment, self._life, _PREFIX)
        after = ""
        while names := await self._store.list_names(prefix, after, NAMES_MAX):
            for name in names:
                yield TxnID.parse(what_of(name)[2].removeprefix(_PREFIX))
            after = names[-1]

    async def drop(self, txn_id: TxnID) -> None:
        """Delete the ledger of a transaction; one that is not there is as good."""
        held = self._held.pop(txn_id, None)
        if held is not None and not held.users:
            await held.ledger.close()
        await self._store.delete(self._name(txn_id), None)

    async def close(self) -> None:
        """Let all of them go."""
        while self._held:
            _, held = self._held.popitem()
            await held.ledger.close()

    def _name(self, txn_id: TxnID) -> str:
        return beside(SIDECAR, self._segment, self._life, f"{_PREFIX}{txn_id}")

    @asynccontextmanager
    async def _at(self, txn_id: TxnID, *, make: bool) -> AsyncIterator[_Open]:
        """Hold a ledger open while something is done there."""
        own = self._held.get(txn_id)
        if own is None:
            async with self._opening:
                own = self._held.get(txn_id)
                if own is None:
                    own = self._held[txn_id] = await self._opened(txn_id, make=make)
        self._held.move_to_end(txn_id)
        own.users += 1
        try:
            yield own
        except (LedgerNotFound, Closed) as error:
            self._held.pop(txn_id, None)
            raise LedgerNotFound(own.ledger.name) from error
        finally:
            own.users -= 1
            await self._let_go()

    async def _opened(self, txn_id: TxnID, *, make: bool) -> _Open:
        name = self._name(txn_id)
        ledger = await (self._store.create(name) if make else self._store.open(name))
        if make:
            # Whoever deletes a topic removes its ledger first, and what stands beside it then: see `make_sidecar`.
            await self._topic.tail()
        return _Open(ledger, (await ledger.tail()).open_ledger_id)

    async def _let_go(self) -> None:
        """Close those that were not used for longest, as far as nobody is at them."""
        idle = [txn_id for txn_id, own in self._held.items() if not own.users]
        for txn_id in idle[: max(0, len(self._held) - self._open_max)]:
            await self._held.pop(txn_id).ledger.close()
