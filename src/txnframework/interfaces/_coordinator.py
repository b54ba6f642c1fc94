"""ITransactionCoordinator, its refinement for applications, and what it calls."""

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
    Swept,
    Transaction,
)


class IParticipants(Interface):
    """How a coordinator reaches buffers and pending-ack stores; the broker provides it."""

    async def settle(participant: Participant, ended: Transaction) -> None:
        """
        Make the outcome take effect there; idempotent, from any process.

        :raises Unavailable: it cannot be done now; what is left will be found again.
        :raises LedgerNotFound: the segment was deleted for ever, with everything in it and every cursor on it: there is
            nothing left for the outcome to take effect on, and the coordinator forgets what it keeps of the part.
        """


class ICoordinatorShare(Interface):
    """
    Which coordinator ids this host serves, of those of one family; the broker provides it.

    The hosts that ask for their share spread the ids evenly, one lease for each id, and take over those of a host that
    died. Nothing may rely on that for safety: a host that was paused goes on as if it held what another one has taken
    over.
    """

    ids: tuple[int, ...] = Attribute("Every coordinator id of the family; with the log family's bit in its ids.")

    async def held() -> frozenset[int]:
        """
        Return the ids that this host holds now; taking part begins with the first call, which waits for the first id.

        There are none where there are more hosts than ids, where this host does not take part, and while the store is
        away.
        """

    async def changed(known: frozenset[int]) -> frozenset[int]:
        """
        Wait until this host holds others than ``known``; return those.

        :raises Closed: the host is being closed.
        """


class ITransactionCoordinator(Interface):
    """
    Decides transactions of one family; every method may be called in any process.

    Obligations.  An id never repeats, not after a restart either. A transaction ends once: everybody sees one outcome.
    The outcome stays readable for ``retention_ms``, and for as long as any of its effects is not durable.
    """

    family: str = Attribute("'metadata' or 'log'.")

    async def begin(request: Begin) -> Transaction:
        """
        Return a new open transaction.

        :raises OutcomeUnknown: one may have begun that nobody knows; it times out. Begin another.
        """

    async def enlist(txn_id: TxnID, participants: frozenset[Participant]) -> None:
        """
        Log family: record them before the first write. Metadata family: nothing, the operations are the record.

        Repeating it changes nothing. One that fails or is cancelled may have recorded some of them: their participation
        costs one more step at the end, and has no other effect.

        :raises TransactionConflict: the transaction has ended; also for those that were recorded while it was open.
        :raises TransactionNotFound: it never began, or was forgotten.
        :raises OutcomeUnknown: they may be recorded; nothing may be written before a repetition has succeeded.
        """

    async def end(request: End) -> Transaction:
        """
        Decide once, by one compare-and-set; return the transaction as it ended.

        The same End again (action and branches) succeeds, also after a reply was lost. A family whose participants have
        to be told tells them before this returns, for ``transactions.end_timeout_ms`` at most. Cancelled, it may be
        decided, and not everybody told: a caller that lives on finishes it, by the same End or by ``settle``.

        :raises EndTransactionTimeout: it is decided, and not every participant was told in that time; neither sooner
            nor later than that after the decision. A sweep goes on telling them, and so does the same End again.
        :raises InvalidTransactionState: it ended otherwise; carries the real outcome.
        :raises TransactionNotFound: it never began, or was forgotten.
        :raises NotTransactionOwner: it belongs to another principal, and no operator asks; nothing was changed.
        :raises OutcomeUnknown: not even reading could tell; ``describe`` later.
        """

    async def settle(txn_id: TxnID) -> Swept:
        """
        Make an ended transaction's outcome take effect at every participant, at once, instead of leaving it to a
        sweep.

        Idempotent, from any process; ``left`` counts the operations that could not be settled and will be found again.
        """

    async def describe(txn_id: TxnID) -> Transaction:
        """
        Return it with its participants as they are known now; what was settled may be missing there.

        ``parts`` tells through which branches, where the family records that: the metadata family does, the log family
        leaves it empty. A branch that is there need not count when the transaction is committed.

        :raises TransactionNotFound: it never began, or was forgotten.
        """

    async def list_open(query: OpenQuery) -> tuple[Transaction, ...]:
        """Return open transactions, oldest deadline first; one whose record is damaged is left out."""

    async def outstanding(after: TxnID | None, limit: Limit) -> tuple[Outstanding, ...]:
        """
        Return those that have operations left although they have ended, or are not known, in the order of their ids:
        the first ``limit.items`` after ``after``, whether or not that one is still among them.

        Nothing is wrong with one that ended a moment ago: it is being settled. One that stays is stuck: nobody sweeps,
        or a participant cannot be settled. An open one is never among them, and one that was settled is not either.
        COMMITTING and ABORTING count as ended. Reads only; what ends, or is settled, meanwhile may be there or not.
        """

    async def watch_ended(txn_ids: frozenset[TxnID]) -> dict[TxnID, State]:
        """
        Wait until at least one of them has ended; return those that have; one that is not known counts as ended
        COMMITTED.

        While nothing changes it takes no step to the stores. It may look when another transaction of the same
        coordinator changes, a bounded number of steps each time, and once when nothing did; it never asks in a loop.
        """

    async def expire(now_ms: int) -> Swept:
        """
        Abort what is past its deadline (with the allowed clock skew to spare), a bounded number.

        A process calls this and ``collect`` one after the other, never twice at a time; other processes may meanwhile.
        """

    async def collect(now_ms: int) -> Swept:
        """
        Forget what ended longer than ``retention_ms`` ago and left nothing undone, a bounded number.

        What is left undone is settled first; what cannot be settled stays. Never deletes a record whose effect is not
        durable.
        """

    async def forget_segment(segment: str, upto_ledger_id: int | None) -> None:
        """
        Forget what the family keeps of a segment that was deleted for ever; idempotent, from any process.

        ``upto_ledger_id``: the segment's name may have returned since with higher ledger ids; what is kept of those
        stays.

        Transactions that took part there are not touched: when they end, their parts there are forgotten.
        """

    async def close() -> None:
        """Stop; decisions in flight end as OutcomeUnknown, waiting watches raise Closed; may be repeated."""


class IApplicationCoordinator(ITransactionCoordinator):
    """
    A coordinator that knows which batch of which application a transaction carries, through restarts of the
    application.

    How it is used, by one run of an application: 1. ``claim`` the application for this run; 2. for each batch
    ``begin_batch`` from whichever process comes first, the others find the same transaction; 3. write and acknowledge
    under branches;
    4. ``finish_batch`` with the ranges consumed; 5. read ``application`` again and look that it still names this run
    and transaction; 6. ``end``.

    A past run is Fenced for ever. A new run aborts the open transaction of the old one and never continues it.
    """

    async def application(name: str) -> Application | None:
        """Return what is known of an application; the effect of a transaction that has ended is included."""

    async def claim(name: str, run: str) -> Application:
        """
        Make ``run`` the one that may go on; idempotent.

        A run is not known to be older before it has claimed: the first call for a run fences whichever run was there.

        :raises Fenced: ``run`` is a past run.
        :raises OutcomeUnknown: call again.
        """

    async def begin_batch(batch: BatchID, timeout_ms: int) -> Transaction:
        """
        Return the open transaction of this batch, beginning it if there is none; any process of the run may call it.

        A transaction of an earlier run, or of an earlier batch, that is still open is aborted first. If the batch's
        transaction ended, another begins (a batch that was committed already is written again and then judged a
        replay: writers always stage).

        A run that has not claimed before claims here, from the run that it ``follows`` and from no other: one that has
        claimed meanwhile is newer. Where that is not known, a task of a dead run that was held up before its run's very
        first call, and goes on after a newer run has claimed, fences that one: nothing is lost or doubled, its open
        transaction is aborted and its next call raises Fenced; starting it again, as a new run, goes on.

        :raises Fenced: the run is a past one, or another one has followed the same run before it; nothing was changed.
        :raises OutcomeUnknown: call again.
        """

    async def finish_batch(batch: BatchID, txn_id: TxnID, ranges: tuple[SourceRange, ...]) -> None:
        """
        Record durably, in the transaction, what the batch consumed, just before it is committed.

        :raises TransactionConflict: the transaction has ended.
        """
