"""ITransactionCoordinator, its refinement for applications, and the interfaces that it calls."""

from __future__ import annotations

from zope.interface import Attribute, Interface

from txnframework.model.ids import TxnID
from txnframework.model.positions import Limit
from txnframework.model.transactions import (
    Application,
    BatchID,
    Begin,
    End,
    OpenQuery,
    Outstanding,
    Participant,
    SourceRange,
    State,
    SweepResult,
    Transaction,
)


class IParticipants(Interface):
    """A coordinator's access to buffers and pending-ack stores; the broker provides it."""

    async def settle(participant: Participant, ended: Transaction) -> None:
        """
        Make the outcome take effect at the participant; idempotent, from any process.

        :raises Unavailable: the participant cannot be settled now; a later call finds the remaining operations.
        :raises LedgerNotFound: the segment was deleted permanently, with its entries and cursors. No data
            remains on which the outcome could take effect, and the coordinator deletes its data about the participant.
        """


class ICoordinatorShare(Interface):
    """
    The coordinator ids of one family that this host serves; the broker provides it.

    The hosts that request their share spread the ids evenly, with one lease for each id. They take over the ids of a
    host that died. Nothing may rely on that for safety: a paused host continues as if it held the ids that another host
    has taken over.
    """

    ids: tuple[int, ...] = Attribute("Every coordinator id of the family; with the log family's bit in its ids.")

    async def held() -> frozenset[int]:
        """
        Return the ids that this host holds now; the first call starts the participation and waits for the first id.

        A host may hold none if there are more hosts than ids. It holds none if it does not participate, and while the
        store is unavailable.
        """

    async def changed(known: frozenset[int]) -> frozenset[int]:
        """
        Wait until this host holds other ids than ``known``, and return them.

        :raises Closed: the host is being closed.
        """


class ITransactionCoordinator(Interface):
    """
    Decides the transactions of one family; every method may be called in any process.

    Obligations. An id is never used again, not even after a restart. A transaction ends once, and all processes see the
    same outcome. The outcome stays readable for ``retention_ms``, and for as long as any of its effects is not durable.
    """

    family: str = Attribute("'metadata' or 'log'.")

    async def begin(request: Begin) -> Transaction:
        """
        Return a new open transaction.

        :raises InvalidInput: the timeout is too long, or ``co_commit`` is requested of a coordinator whose store cannot
            join transactions of the application.
        :raises OutcomeUnknown: a transaction that no process knows may have begun; it times out. Begin another one.
        """

    async def enlist(txn_id: TxnID, participants: frozenset[Participant]) -> None:
        """
        Record participants before the first write.

        This is for the log family. The metadata family does nothing, because the operations are the record.

        Repeating the call changes nothing. A call that fails or is cancelled may have recorded some participants. Each
        of them costs one more step at the end, and has no other effect.

        :raises TransactionConflict: the transaction has ended; also for participants that were recorded while it was
            open.
        :raises TransactionNotFound: the transaction never began, or was forgotten.
        :raises OutcomeUnknown: the participants may be recorded; nothing may be written before a repeated call has
            succeeded.
        """

    async def end(request: End) -> Transaction:
        """
        Decide once, by one compare-and-set; return the transaction as it ended.

        The same End again (action and branches) succeeds, also after a lost reply. A family whose participants have to
        be notified notifies them before this returns, for at most ``transactions.end_timeout_ms``. After a cancelled
        call the transaction may be decided with some participants not notified. A caller that lives on completes it, by
        the same End or by ``settle``.

        Obligation. An entry of a branch that counts is stored before the commit, or it never counts. The caller knows
        that all operations of these branches are confirmed. If it does not know (``request.unfinished``), the
        coordinator makes sure of it first: a process that was paused while it sent, for however long, adds nothing to
        what readers have seen.

        :raises EndTransactionTimeout: the transaction is decided, and not every participant was notified in that time.
            The error is raised exactly that time after the decision. A sweep continues to notify them; repeating the
            same End does so too.
        :raises InvalidTransactionState: the transaction ended otherwise; the error carries the real outcome.
        :raises TransactionConflict: the transaction was begun with ``co_commit``, is open, and ``request`` commits it;
            nothing was changed. Or the commit is ``unfinished``, and it cannot be excluded that a message is added
            later; the transaction is open, and nothing can be added to it.
        :raises TransactionNotFound: the transaction never began, or was forgotten.
        :raises NotTransactionOwner: the transaction belongs to another principal, and the caller is no operator;
            nothing was changed.
        :raises OutcomeUnknown: not even a read showed the outcome; call ``describe`` later.
        """

    async def settle(txn_id: TxnID) -> SweepResult:
        """
        Make an ended transaction's outcome take effect at every participant now, instead of leaving it to a sweep.

        Idempotent, from any process. ``left`` counts the operations that could not be settled and will be found again.
        """

    async def describe(txn_id: TxnID) -> Transaction:
        """
        Return the transaction with its participants as they are known now; settled participants may be missing.

        ``parts`` holds the branches of each participant, if the family records them. The metadata family does; the log
        family leaves it empty. A branch that is listed need not count when the transaction is committed.

        :raises TransactionNotFound: the transaction never began, or was forgotten.
        """

    async def list_open(query: OpenQuery) -> tuple[Transaction, ...]:
        """Return open transactions, oldest deadline first; a transaction whose record is damaged is left out."""

    async def outstanding(after: TxnID | None, limit: Limit) -> tuple[Outstanding, ...]:
        """
        Return ended or unknown transactions that have operations left, in the order of their ids.

        The result is the first ``limit.items`` after ``after``, whether or not ``after`` itself still has operations
        left.

        A transaction that ended a moment ago is normal here: it is being settled. One that stays is stuck: no process
        sweeps, or a participant cannot be settled. An open transaction is never included, and neither is a settled one.
        COMMITTING and ABORTING count as ended. Reads only; a transaction that ends or is settled meanwhile may or may
        not be included.
        """

    async def watch_ended(txn_ids: frozenset[TxnID]) -> dict[TxnID, State]:
        """
        Wait until at least one of the transactions has ended, and return those that have.

        A transaction that is not known counts as ended COMMITTED. While nothing changes, the wait makes no call to the
        stores. It may read when another transaction of the same coordinator changes, a bounded number of calls each
        time, and once without a change. It never polls.
        """

    async def expire(now_ms: int) -> SweepResult:
        """
        Abort a bounded number of transactions that are past their deadline by more than the allowed clock skew.

        The result names them in ``overdue``, so that the host can log them. A process calls this and ``collect`` one
        after the other, never twice at a time; other processes may call them meanwhile.
        """

    async def collect(now_ms: int) -> SweepResult:
        """
        Forget a bounded number of transactions that ended longer than ``retention_ms`` ago and have nothing left to
        settle.

        Remaining operations are settled first; a transaction that cannot be settled stays. Never deletes a record whose
        effect is not durable.
        """

    async def forget_segment(segment: str, upto_ledger_id: int | None) -> None:
        """
        Delete the data that the family keeps of a permanently deleted segment; idempotent, from any process.

        ``upto_ledger_id``: a new segment of this name may exist, with higher ledger ids; the data of those ledgers
        stays.

        Transactions that took part there are unchanged: when they end, their parts there are forgotten.
        """

    async def close() -> None:
        """Stop; decisions in flight raise OutcomeUnknown, waiting watches raise Closed; may be repeated."""


class IApplicationCoordinator(ITransactionCoordinator):
    """
    A coordinator that knows which batch of which application a transaction carries, across restarts of the application.

    How one run of an application uses it:

    1. ``claim`` the application for this run.
    2. For each batch call ``begin_batch``. The first process to call it begins the transaction, and the others find the
       same one.
    3. Write and acknowledge under branches.
    4. Call ``finish_batch`` with the consumed ranges.
    5. Read ``application`` again and check that it still names this run and this transaction.
    6. Call ``end``.

    A past run is Fenced permanently. A new run aborts the open transaction of the old one and never continues it.
    """

    async def application(name: str) -> Application | None:
        """Return the stored state of an application; it includes the effect of a transaction that has ended."""

    async def claim(name: str, run: str) -> Application:
        """
        Make ``run`` the current run of the application; idempotent.

        Before a run has claimed, it is not known to be older: the first call for a run fences whichever run was
        current.

        :raises Fenced: ``run`` is a past run.
        :raises OutcomeUnknown: call again.
        """

    async def begin_batch(batch: BatchID, timeout_ms: int) -> Transaction:
        """
        Return the open transaction of this batch, or begin one if there is none; any process of the run may call it.

        An open transaction of an earlier run, or of an earlier batch, is aborted first. If the batch's transaction has
        ended, another one begins. A batch that was already committed is written again and then recognised as a replay:
        writers always stage.

        A run that has not claimed before claims here, from the run that it ``follows`` and from no other: a run that
        has claimed meanwhile is newer. If the followed run is not known, a task of a dead run can fence a newer run.
        This needs a task that was delayed before its run's very first call, and that continues after the newer run has
        claimed. Nothing is lost or doubled: the newer run's open transaction is aborted and its next call raises
        Fenced. Starting it again, as a new run, continues the work.

        :raises Fenced: the run is a past one, or another run has followed the same run before it; nothing was changed.
        :raises OutcomeUnknown: call again.
        """

    async def finish_batch(batch: BatchID, txn_id: TxnID, ranges: tuple[SourceRange, ...]) -> None:
        """
        Record durably, in the transaction, the positions that the batch consumed; called directly before the commit.

        :raises TransactionConflict: the transaction has ended.
        """
