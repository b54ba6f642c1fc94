"""Admission to a topic: branches of open transactions that have enlisted it may append."""

from __future__ import annotations

from collections import OrderedDict

from txnframework.errors import LedgerSealed, NotTransactionOwner, TransactionDomainMismatch
from txnframework.interfaces import IManagedLedger, ITransactionCoordinator
from txnframework.model import Branch, Participant, State
from txnframework.model.ids import LOG_FAMILY
from txnframework_legacy.family import FamilyNote


class EnlistedBranches:
    """
    Admits a branch to the open ledger once its transaction has enlisted the topic.

    The open ledger is read before the transaction's state. A branch is therefore admitted only to a ledger that was
    open while the transaction was. So no entry of a transaction is in a later ledger than its marker.
    """

    def __init__(
        self,
        segment: str,
        ledger: IManagedLedger,
        coordinator: ITransactionCoordinator,
        note: FamilyNote,
        branches_max: int,
    ) -> None:
        self._segment = segment
        self._note = note
        self._ledger = ledger
        self._coordinator = coordinator
        self._branches_max = branches_max
        self._admitted: OrderedDict[Branch, int] = OrderedDict()

    async def admit(self, branch: Branch, principal: str) -> int:
        """
        Return the id of the ledger that a branch may append to; a send in an ended transaction is refused.

        :raises TransactionDomainMismatch: the transaction belongs to another family.
        :raises LedgerSealed: the topic is sealed.
        :raises NotTransactionOwner: the transaction belongs to another principal.
        :raises TransactionConflict: the transaction has ended.
        """
        txn_id = branch.txn_id
        if txn_id.family != LOG_FAMILY:
            raise TransactionDomainMismatch(
                txn_id,
                txn_id.family,
                self._segment,
                "it is served by the log family: begin one for its domain and namespace",
            )
        known = self._admitted.get(branch)
        tail = None if known is not None else await self._ledger.tail()
        if tail is not None and tail.sealed:
            raise LedgerSealed(self._segment)
        transaction = await self._coordinator.describe(txn_id)
        if transaction.principal and transaction.principal != principal:
            raise NotTransactionOwner(txn_id, principal)
        participant = Participant(self._segment)
        if transaction.state is not State.OPEN or participant not in transaction.participants:
            await self._coordinator.enlist(txn_id, frozenset({participant}))
        if known is not None:
            return known
        await self._note.put()
        assert tail is not None
        self._admitted[branch] = tail.open_ledger_id
        if len(self._admitted) > self._branches_max:
            self._admitted.popitem(last=False)
        return tail.open_ledger_id

    def closed(self, branch: Branch) -> None:
        """Forget the admission of a branch whose ledger was closed."""
        self._admitted.pop(branch, None)
