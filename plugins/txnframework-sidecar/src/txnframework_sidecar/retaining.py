"""Trimming: the topic first, then the ledgers beside it to which the topic no longer refers."""

from __future__ import annotations

from txnframework.errors import TransactionNotFound, Unavailable
from txnframework.interfaces import IManagedLedger, ITransactionCoordinator
from txnframework.model import Position, State, Swept, TxnID
from txnframework_sidecar.compaction.compacted import Compacted
from txnframework_sidecar.compaction.compacting import Compacting
from txnframework_sidecar.ledgers import TopicLedgers
from txnframework_sidecar.options import SidecarOptions
from txnframework_sidecar.own_ledgers import OwnLedgers
from txnframework_sidecar.settling import Settling

LEDGERS_MAX = 1_000
"""How many ledgers of a sidecar are counted before it is compacted."""


class Retaining:
    """Removes data that no reader needs any more. Any process may do this, at any time."""

    def __init__(
        self,
        ledgers: TopicLedgers,
        own: OwnLedgers,
        settling: Settling,
        coordinator: ITransactionCoordinator,
        compacted: Compacted,
        compacting: Compacting,
        options: SidecarOptions,
    ) -> None:
        self._ledgers = ledgers
        self._own = own
        self._settling = settling
        self._coordinator = coordinator
        self._compacted = compacted
        self._compacting = compacting
        self._options = options

    async def trim(self, ledger_id: int) -> Swept:
        """
        Trim the topic's ledgers below ``ledger_id``, then those beside it; compact some of the sidecar if it is long.

        The topic is trimmed first: after a crash between the two, unreferenced data stays until the next time. Before
        that, the commits whose markers will be trimmed are noted. Otherwise a process that settles one of them again
        would find neither marker nor note.
        """
        topic = self._ledgers.topic
        tail = await self._ledgers.read_topic()
        below = min(ledger_id, tail.open_ledger_id)
        (before,) = await topic.ledgers(-1, 1)
        if below > before.ledger_id:
            await self._settling.note_before(below)
        first = await topic.trim(below, frozenset())
        self._ledgers.stream.without(first)
        await self._compacted.refresh()
        await self._compacted.trim(Position(first, -1))
        sidecar = await self._ledgers.find_sidecar()
        left = 0
        if sidecar is not None:
            left = await self._trim_sidecar(sidecar)
            await self._drop_own()
        return Swept(int(first > before.ledger_id), int(first < below) + left)

    async def _trim_sidecar(self, sidecar: IManagedLedger) -> int:
        """Trim the sidecar; return 1 if more of it could be compacted."""
        tail = await sidecar.tail()
        if tail.last_confirmed.entry_id + 1 >= self._options.sidecar_ledger_entries_max:
            await sidecar.roll()
        undecided, referred = await self._bounds()
        is_long = await self._is_long(sidecar, undecided, referred)
        if is_long:
            before = self._compacted.upto
            await self._compacting.run()
            is_long = self._compacted.upto > before
            undecided, referred = await self._bounds()
            is_long = is_long and await self._is_long(sidecar, undecided, referred)
        below = min(undecided, referred)
        first = await sidecar.trim(below, self._ledgers.index.aborted_before(below))
        self._ledgers.sidecar_trimmed(first)
        return int(is_long)

    async def _drop_own(self) -> None:
        """
        Delete the own ledgers of large transactions to which no marker refers, now or later.

        Each transaction's end is checked first, then the sidecar is read, then the topic, as in ``_bounds``. So all
        references to the own ledger of an ended transaction are read. After a crash, or if a paused writer creates a
        ledger again, the ledger is found again by its name.
        """
        index, references = self._ledgers.index, self._ledgers.stream.references
        over = [
            txn_id
            async for txn_id in self._own.transactions()
            if txn_id not in index.writing and txn_id not in references.own and await self._is_over(txn_id)
        ]
        if not over:
            return
        await self._ledgers.read_sidecar()
        await self._ledgers.read_topic()
        for txn_id in over:
            if txn_id not in index.writing and txn_id not in references.own:
                await self._own.drop(txn_id)

    async def _is_over(self, txn_id: TxnID) -> bool:
        """
        Return whether no later send of the transaction can count here; write its markers and its note if they are
        missing.
        """
        if txn_id in self._ledgers.index.noted:
            return True
        try:
            transaction = await self._coordinator.describe(txn_id)
        except TransactionNotFound:
            return True
        if transaction.state is State.OPEN:
            return False
        try:
            # A decision is not enough: until the markers are written, an entry sent after the decision is still listed.
            await self._settling.settle(transaction)
        except Unavailable:
            return False
        return True

    async def _bounds(self) -> tuple[int, int]:
        """
        Return the first ledger of the sidecar with undecided entries, and the first one that a marker refers to.

        The sidecar is read first, then the topic. The markers of every noted transaction were stored before its note,
        so they are read. A transaction without a note is undecided. The reverse order would miss a commit between the
        two.
        """
        tail = await self._ledgers.read_sidecar()
        assert tail is not None
        # As it was when reading began: ledgers opened since have not been read.
        open_ledger_id = tail.open_ledger_id
        first_open = self._ledgers.index.first_open_ledger()
        await self._ledgers.read_topic()
        references = self._ledgers.stream.references
        references.compacted(self._compacted.upto)
        referred = references.first_ledger()
        undecided = open_ledger_id if first_open is None else min(first_open, open_ledger_id)
        return undecided, open_ledger_id if referred is None else referred

    async def _is_long(self, sidecar: IManagedLedger, undecided: int, referred: int) -> bool:
        """Return whether too many closed ledgers are kept only for committed messages."""
        if referred >= undecided:
            return False
        kept = [one for one in await sidecar.ledgers(referred - 1, LEDGERS_MAX) if one.ledger_id < undecided]
        return len(kept) > self._options.compaction_ledgers_kept_max
