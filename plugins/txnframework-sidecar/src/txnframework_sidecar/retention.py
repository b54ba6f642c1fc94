"""
Trimming of the topic, then of the ledgers beside it that the topic no longer refers to. Also compaction.

The sidecar holds messages in the order of the sends, mixed with those of other and of aborted transactions. Reading a
commit requires reads at many positions, and one old transaction retains all messages sent around it. Compaction writes
the messages of each marker as one entry to another ledger beside the topic, in the order of the markers. After that
the sidecar can be trimmed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from txnframework.environment import Environment
from txnframework.errors import EntryTrimmed, LedgerClosed, TransactionNotFound, Unavailable
from txnframework.interfaces import IManagedLedger, ITransactionCoordinator
from txnframework.model import Append, EntryRange, Limit, Position, State, SweepResult, TxnID
from txnframework_sidecar.compacted import (
    TOKEN_BITS,
    CompactedEntry,
    CompactedLedgers,
    EntryKind,
    decode_compacted,
    encode_compacted,
    encode_runs,
)
from txnframework_sidecar.ledgers import TopicLedgers
from txnframework_sidecar.markers import Marker, read_topic_entry
from txnframework_sidecar.messages import MessageReader
from txnframework_sidecar.options import SidecarOptions
from txnframework_sidecar.own_ledgers import OwnLedgers
from txnframework_sidecar.settlement import Settlement

PAGE = Limit(1_000)
_APPEND_BYTES = 1024 * 1024


@dataclass
class _RunInProgress:
    """A run in progress; ``upto`` is the last position of the topic that it has processed."""

    ledger_id: int
    token: int
    upto: Position
    kept: int = 0
    waiting: list[Append] = field(default_factory=list)


class Compactor:
    """
    Rewrites the messages that markers list. Any process may do this, and several may do it concurrently.

    A run takes a ledger of its own by closing the previous one. The previous run can then append nothing more, its
    final entry included, so no two finished runs cover the same markers. A run that crashes at any step does not count,
    and is trimmed with its ledger. Readers use the sidecar until the run is finished, and afterwards as long as the
    sidecar is not trimmed.

    Messages in a large transaction's own ledger stay there. They are stored together, and the whole ledger is deleted
    when the topic no longer refers to it.
    """

    def __init__(
        self,
        ledgers: TopicLedgers,
        compacted: CompactedLedgers,
        messages: MessageReader,
        environment: Environment,
        options: SidecarOptions,
    ) -> None:
        self._ledgers = ledgers
        self._compacted = compacted
        self._messages = messages
        self._environment = environment
        self._options = options

    async def run(self) -> None:
        """Compact the next markers after those compacted already, unless another process does."""
        ledger = await self._compacted.ledger()
        ledger_id = (await ledger.roll()).open_ledger_id
        # The contents of earlier ledgers are final now.
        await self._compacted.refresh()
        token = self._environment.random_bits(TOKEN_BITS)
        run = _RunInProgress(ledger_id, token, self._compacted.upto)
        try:
            await ledger.append((encode_compacted(CompactedEntry(EntryKind.CLAIM, token, run.upto)),), ledger_id)
            (first,) = await ledger.read(EntryRange(Position(ledger_id, -1), Position(ledger_id, 0)), Limit(1))
            if decode_compacted(first, ledger.name).token != token:
                return
            await self._keep(run, ledger)
            done = encode_compacted(CompactedEntry(EntryKind.DONE, token, run.upto, encode_runs(self._compacted.runs)))
            await ledger.append((*run.waiting, done), ledger_id)
        except (LedgerClosed, EntryTrimmed):
            return  # another process started a later run, or trimmed the data being read
        await self._compacted.refresh()

    async def _keep(self, run: _RunInProgress, ledger: IManagedLedger) -> None:
        """
        Write the messages of the next markers.

        At the end, ``upto`` is never inside a commit.
        """
        topic, end = self._ledgers.topic, self._ledgers.topic_state.upto
        (first, *_) = await topic.ledgers(-1, 1)
        run.upto = max(run.upto, Position(first.ledger_id, -1))
        while run.upto < end:
            page = await topic.read(EntryRange(run.upto, end), PAGE)
            for entry in page:
                marker = read_topic_entry(entry, topic.name)
                if marker is not None and entry.position not in self._ledgers.topic_state.repeated:
                    if not _belongs(run, marker, self._options.compaction_entries_max):
                        return
                    await self._write(run, ledger, marker, entry.position)
                run.upto = entry.position
            if not page:
                return

    async def _write(self, run: _RunInProgress, ledger: IManagedLedger, marker: Marker, position: Position) -> None:
        if marker.part.own or not marker.part.spans:
            return
        entry = await self._messages.from_sidecar(marker, position)
        run.waiting.append(encode_compacted(CompactedEntry(EntryKind.MESSAGES, run.token, position, entry.data)))
        run.kept += 1
        if sum(len(one.data) for one in run.waiting) >= _APPEND_BYTES:
            await ledger.append(tuple(run.waiting), run.ledger_id)
            run.waiting.clear()


def _belongs(run: _RunInProgress, marker: Marker, entries_max: int) -> bool:
    """Return whether a marker belongs to this run: the run is bounded, but never ends within a commit."""
    return marker.number > 0 or run.kept < entries_max


LEDGERS_MAX = 1_000
"""How many ledgers of a sidecar are counted before it is compacted."""


class Retention:
    """Removes data that no reader needs any more. Any process may do this, at any time."""

    def __init__(
        self,
        ledgers: TopicLedgers,
        own: OwnLedgers,
        settlement: Settlement,
        coordinator: ITransactionCoordinator,
        compacted: CompactedLedgers,
        compactor: Compactor,
        options: SidecarOptions,
    ) -> None:
        self._ledgers = ledgers
        self._own = own
        self._settlement = settlement
        self._coordinator = coordinator
        self._compacted = compacted
        self._compactor = compactor
        self._options = options

    async def trim(self, ledger_id: int) -> SweepResult:
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
            await self._settlement.note_before(below)
        first = await topic.trim(below, frozenset())
        self._ledgers.topic_state.without(first)
        await self._compacted.refresh()
        await self._compacted.trim(Position(first, -1))
        sidecar = await self._ledgers.find_sidecar()
        left = 0
        if sidecar is not None:
            left = await self._trim_sidecar(sidecar)
            await self._drop_own()
        return SweepResult(int(first > before.ledger_id), int(first < below) + left)

    async def _trim_sidecar(self, sidecar: IManagedLedger) -> int:
        """Trim the sidecar; return 1 if more of it could be compacted."""
        tail = await sidecar.tail()
        if tail.last_confirmed.entry_id + 1 >= self._options.sidecar_ledger_entries_max:
            await sidecar.roll()
        undecided, referred = await self._bounds()
        is_long = await self._is_long(sidecar, undecided, referred)
        if is_long:
            before = self._compacted.upto
            await self._compactor.run()
            is_long = self._compacted.upto > before
            undecided, referred = await self._bounds()
            is_long = is_long and await self._is_long(sidecar, undecided, referred)
        below = min(undecided, referred)
        first = await sidecar.trim(below, self._ledgers.sidecar_state.aborted_before(below))
        self._ledgers.sidecar_trimmed(first)
        return int(is_long)

    async def _drop_own(self) -> None:
        """
        Delete the own ledgers of large transactions to which no marker refers, now or later.

        Each transaction's end is checked first, then the sidecar is read, then the topic, as in ``_bounds``. So all
        references to the own ledger of an ended transaction are read. After a crash, or if a paused writer creates a
        ledger again, the ledger is found again by its name.
        """
        state, references = self._ledgers.sidecar_state, self._ledgers.topic_state.references
        over = [
            txn_id
            async for txn_id in self._own.transactions()
            if txn_id not in state.writing and txn_id not in references.own and await self._is_over(txn_id)
        ]
        if not over:
            return
        await self._ledgers.read_sidecar()
        await self._ledgers.read_topic()
        for txn_id in over:
            if txn_id not in state.writing and txn_id not in references.own:
                await self._own.drop(txn_id)

    async def _is_over(self, txn_id: TxnID) -> bool:
        """
        Return whether no later send of the transaction can count here; write its markers and its note if they are
        missing.
        """
        if txn_id in self._ledgers.sidecar_state.noted:
            return True
        try:
            transaction = await self._coordinator.describe(txn_id)
        except TransactionNotFound:
            return True
        if transaction.state is State.OPEN:
            return False
        try:
            # A decision is not enough: until the markers are written, an entry sent after the decision is still listed.
            await self._settlement.settle(transaction)
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
        first_open = self._ledgers.sidecar_state.first_open_ledger()
        await self._ledgers.read_topic()
        references = self._ledgers.topic_state.references
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
