"""Settlement of a transaction in one topic: its markers in the topic, then a note in the sidecar."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from txnframework.environment import Environment
from txnframework.errors import LedgerClosed, LedgerSealed, Unavailable
from txnframework.model import Append, Participant, State, Transaction, TxnID
from txnframework_sidecar.ledgers import TopicLedgers
from txnframework_sidecar.markers import Marker, Note, encode_marker, encode_note
from txnframework_sidecar.options import SidecarOptions
from txnframework_sidecar.parts import parts_of
from txnframework_sidecar.state import CommitMarkers


class Settlement:
    """
    Writes a transaction's outcome to one topic. Any process may do this, any number of times.

    The order of its steps makes a commit visible exactly once:

    1. *The open ledger of the topic is determined first*, then the topic and the sidecar are read. Another process's
       marker that this reading misses can only be in that ledger; otherwise the append to that ledger is refused. So a
       reader of that ledger finds both markers and skips the second one.
    2. *Markers, then note.* After a crash between the two, the commit is not noted. The next process that settles finds
       the markers, even if their ledger was closed since, and only writes the note. After a crash before the markers
       nothing is visible, and the next process starts again.
    3. *The note repeats the markers' contents*: entries of the sidecar after its ``upto`` are not listed, and are
       recognized as late.
    """

    def __init__(
        self, ledgers: TopicLedgers, participant: Participant, environment: Environment, options: SidecarOptions
    ) -> None:
        self._ledgers = ledgers
        self._participant = participant
        self._environment = environment
        self._options = options

    async def settle(self, ended: Transaction) -> None:
        """
        Write the transaction's outcome to this topic unless it is stored already.

        :raises Unavailable: the topic is sealed and takes no marker, or its open ledgers changed too often.
        """
        if self._participant in ended.participants:
            await self._trying(lambda: self._settle(ended))

    async def note_before(self, ledger_id: int) -> None:
        """Note every commit whose markers are before a ledger of the topic that is about to be trimmed."""

        async def note_all() -> None:
            sidecar = await self._ledgers.read_sidecar()
            if sidecar is None:
                return
            for txn_id, marked in self._ledgers.topic_state.to_be_noted(ledger_id).items():
                await self._note(_note_of(txn_id, marked), sidecar.open_ledger_id)

        await self._trying(note_all)

    async def _settle(self, ended: Transaction) -> None:
        topic, txn_id = self._ledgers.topic, ended.txn_id
        tail = await topic.tail()
        sidecar = await self._ledgers.read_sidecar()
        if sidecar is None or txn_id in self._ledgers.sidecar_state.noted:
            return
        await self._ledgers.read_topic()
        if ended.state is not State.COMMITTED:
            await self._note(Note(txn_id, frozenset(), self._ledgers.sidecar_state.upto, None), sidecar.open_ledger_id)
            return
        if txn_id not in self._ledgers.topic_state.marked:
            try:
                await topic.append(self._markers_of(ended), tail.open_ledger_id)
            except LedgerSealed as error:
                raise Unavailable(
                    f"{topic.name} is sealed, so the marker of transaction {txn_id} cannot be written to it"
                ) from error
            await self._ledgers.read_topic()
        marked = self._ledgers.topic_state.marked.get(txn_id)
        if marked is not None:  # else another process has noted it and the topic has a newer ledger
            await self._note(_note_of(txn_id, marked), sidecar.open_ledger_id)

    def _markers_of(self, ended: Transaction) -> tuple[Append, ...]:
        """Return the markers of a commit. One call appends them, so all of them are stored, or none."""
        state, branches = self._ledgers.sidecar_state, ended.branches or frozenset()
        parts = parts_of(state.listed(ended.txn_id, branches), self._options)
        now_ms = self._environment.now_ms()
        return tuple(
            encode_marker(Marker(ended.txn_id, number, len(parts), part, state.upto, branches), now_ms)
            for number, part in enumerate(parts)
        )

    async def _note(self, note: Note, ledger_id: int) -> None:
        sidecar = await self._ledgers.make_sidecar()
        await sidecar.append((encode_note(note, self._environment.now_ms()),), ledger_id)
        await self._ledgers.read_sidecar()

    async def _trying(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run ``work``; repeat it if a ledger was closed meanwhile."""
        for _ in range(self._options.attempts_max):
            try:
                await work()
            except LedgerClosed:
                continue
            return
        raise Unavailable(f"the open ledgers of {self._ledgers.topic.name} and of its sidecar change too often")


def _note_of(txn_id: TxnID, marked: CommitMarkers) -> Note:
    return Note(txn_id, marked.branches, marked.upto, marked.first)
