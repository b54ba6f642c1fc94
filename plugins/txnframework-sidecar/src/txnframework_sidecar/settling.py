"""Ending a transaction in one topic: its markers in the topic, then a note in the sidecar."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from txnframework.environment import Environment
from txnframework.errors import LedgerClosed, LedgerSealed, Unavailable
from txnframework.model import Append, Participant, State, Transaction, TxnID
from txnframework_sidecar.ledgers import TopicLedgers
from txnframework_sidecar.model.markers import Marker, Note, encode_marker, encode_note
from txnframework_sidecar.model.parts import parts_of
from txnframework_sidecar.model.stream import Marked
from txnframework_sidecar.options import SidecarOptions


class Settling:
    """
    Writes what an outcome means here; any process may, as often as it likes.

    The order of its steps makes a commit visible once:

    1. *The open ledger of the topic is asked for first*, then both are read. A marker of somebody else that is not
       found by that can only stand in this very ledger, or the append to it is refused. So whoever reads that ledger
       finds both, and passes over the second.
    2. *Markers, then note.* Killed between the two: nobody has noted the commit, so whoever settles next finds the
       markers, also where the ledger was closed since, and only notes it. Killed before the markers: nothing is
       visible, and whoever settles next begins anew.
    3. *The note says what the markers say*: what stands in the sidecar behind that is not listed, and is told apart.
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
        Make an outcome take effect, unless it has.

        :raises Unavailable: the topic is sealed, and takes no marker any more.
        """
        if self._participant in ended.participants:
            await self._trying(lambda: self._settle(ended))

    async def note_before(self, ledger_id: int) -> None:
        """Note every commit whose markers stand in front of a ledger of the topic that is about to be trimmed."""

        async def note_all() -> None:
            sidecar = await self._ledgers.read_sidecar()
            if sidecar is None:
                return
            for txn_id, marked in self._ledgers.stream.to_be_noted(ledger_id).items():
                await self._note(_note_of(txn_id, marked), sidecar.open_ledger_id)

        await self._trying(note_all)

    async def _settle(self, ended: Transaction) -> None:
        topic, txn_id = self._ledgers.topic, ended.txn_id
        tail = await topic.tail()
        sidecar = await self._ledgers.read_sidecar()
        if sidecar is None or txn_id in self._ledgers.index.noted:
            return
        await self._ledgers.read_topic()
        if ended.state is not State.COMMITTED:
            await self._note(Note(txn_id, frozenset(), self._ledgers.index.upto, None), sidecar.open_ledger_id)
            return
        if txn_id not in self._ledgers.stream.marked:
            try:
                await topic.append(self._markers_of(ended), tail.open_ledger_id)
            except LedgerSealed as error:
                raise Unavailable(
                    f"{topic.name} is sealed, so the marker of transaction {txn_id} cannot be written to it"
                ) from error
            await self._ledgers.read_topic()
        marked = self._ledgers.stream.marked.get(txn_id)
        if marked is not None:  # otherwise it was noted meanwhile, and the topic has gone on to another ledger
            await self._note(_note_of(txn_id, marked), sidecar.open_ledger_id)

    def _markers_of(self, ended: Transaction) -> tuple[Append, ...]:
        """Return the markers of a commit, which one call appends: all of them stand there, or none."""
        index, branches = self._ledgers.index, ended.branches or frozenset()
        parts = parts_of(index.listed(ended.txn_id, branches), self._options)
        now_ms = self._environment.now_ms()
        return tuple(
            encode_marker(Marker(ended.txn_id, number, len(parts), part, index.upto, branches), now_ms)
            for number, part in enumerate(parts)
        )

    async def _note(self, note: Note, ledger_id: int) -> None:
        sidecar = await self._ledgers.make_sidecar()
        await sidecar.append((encode_note(note, self._environment.now_ms()),), ledger_id)
        await self._ledgers.read_sidecar()

    async def _trying(self, work: Callable[[], Awaitable[None]]) -> None:
        """Begin again where a ledger was closed under the work."""
        for _ in range(self._options.attempts_max):
            try:
                await work()
            except LedgerClosed:
                continue
            return
        raise Unavailable(f"the open ledgers of {self._ledgers.topic.name} and of its sidecar change too often")


def _note_of(txn_id: TxnID, marked: Marked) -> Note:
    return Note(txn_id, marked.branches, marked.upto, marked.first)
