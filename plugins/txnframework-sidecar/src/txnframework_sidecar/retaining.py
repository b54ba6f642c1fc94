"""Trimming: the topic as far as it may be, then what stands beside it as far as the topic no longer refers to it."""

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
    """Removes what nobody can read any more; any process may, at any time."""

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
        Trim the ledgers of the topic below one, then those beside it; where the sidecar is long, compact some of it.

        The topic first: killed between the two, what nobody refers to stays until the next time. Before it, the commits
        whose markers go are noted: whoever ended one of them again would find neither marker nor note.
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
        """Trim the sidecar; return 1 if more could be compacted."""
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
        Drop the ledgers of large transactions to which nothing refers, nor ever will.

        That a transaction is over comes first, then the sidecar is read, then the topic, as for `_bounds`: what refers
        to the ledger of one that was over before stands in what is read then. Killed half way, or made anew by a writer
        that was paused: a ledger that is left is found again by its name.
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
        """Return whether nothing that a transaction sends from now on can come to count here; let it be noted."""
        if txn_id in self._ledgers.index.noted:
            return True
        try:
            transaction = await self._coordinator.describe(txn_id)
        except TransactionNotFound:
            return True
        if transaction.state is State.OPEN:
            return False
        try:
            # Decided is not enough: what was sent behind the decision is listed, if nobody has looked before.
            await self._settling.settle(transaction)
        except Unavailable:
            return False
        return True

    async def _bounds(self) -> tuple[int, int]:
        """
        Return the first ledger of the sidecar with something undecided, and the first that a marker refers to.

        The sidecar is read first, then the topic: the markers of everything that is noted stood before it was, and are
        found; what is not noted is undecided. The other way round, a commit between the two would be missed.
        """
        tail = await self._ledgers.read_sidecar()
        assert tail is not None
        # As it was when reading began: whatever ledgers were opened since, nobody has looked into them.
        open_ledger_id = tail.open_ledger_id
        first_open = self._ledgers.index.first_open_ledger()
        await self._ledgers.read_topic()
        references = self._ledgers.stream.references
        references.compacted(self._compacted.upto)
        referred = references.first_ledger()
        undecided = open_ledger_id if first_open is None else min(first_open, open_ledger_id)
        return undecided, open_ledger_id if referred is None else referred

    async def _is_long(self, sidecar: IManagedLedger, undecided: int, referred: int) -> bool:
        """Whether so many closed ledgers are kept for nothing but messages that were committed."""
        if referred >= undecided:
            return False
        kept = [one for one in await sidecar.ledgers(referred - 1, LEDGERS_MAX) if one.ledger_id < undecided]
        return len(kept) > self._options.compaction_ledgers_kept_max
