"""ITransactionBuffer: the writes to one topic or segment, and what may be read of it."""

from __future__ import annotations

from zope.interface import Attribute, Interface

from txnframework.model.ids import Branch
from txnframework.model.ledger import Append, Appended
from txnframework.model.positions import Position
from txnframework.model.reads import EntryPage, ReadPlan, ReadRequest, Visibility
from txnframework.model.transactions import SweepResult, Transaction


class ITransactionBuffer(Interface):
    """
    All appends to and all reads of one segment, so that no path returns an aborted or undecided message.

    Obligations.

    * An entry with a branch is appended only after its intent is durable, to the ledger that the intent names.
    * ``max_read_position``, once announced, never moves back; everything up to it is decided.
    * Whether an entry is aborted is decided when it is read. For an entry of another family's transaction this is
      impossible: then ``recover`` or the read raises ConfigurationError, and the entry is neither returned nor skipped.
    * Waiting for an announcement reads nothing from the store while nothing changes.
    """

    segment: str = Attribute("Full name of the segment or topic.")

    async def recover() -> Position:
        """
        Read the open transactions and return max_read_position; other methods wait for the recovery, or start it.

        :raises StoreMismatch: ledger and metadata do not belong together: an ``after`` or an abort record is past the
            ledger's end.
        :raises ConfigurationError: the segment was written through a buffer that this one cannot replace.
        """

    async def append(entries: tuple[Append, ...]) -> tuple[Appended, ...]:
        """
        Append entries; those of one call are all of one branch or all of none, and of one principal.

        A branch that is not admitted yet is admitted for the principal that owns the transaction, if the transaction
        has an owner.

        An entry whose sequence is already stored is confirmed with ``duplicate`` True if the earlier copy counts or
        will count. Such a copy is committed, or belongs to the same branch of the same open transaction. A copy that
        does not count (aborted) is replaced. A batch whose sequences are partly stored is reported as a duplicate with
        the earlier copy's ``sequence``; the caller sends the rest.

        :raises TransactionConflict: the transaction has ended, or the earlier copy of an entry belongs to another open
            transaction or branch. That entry was not appended; other entries of the call may be stored in the branch.
            Abandon the branch. Without a branch, send again with the same sequences after the other transaction has
            ended.
        :raises TransactionNotFound: the transaction never began or was forgotten; otherwise as for TransactionConflict.
        :raises TransactionDomainMismatch: the transaction is of another family; nothing was appended.
        :raises NotTransactionOwner: the transaction belongs to another principal; nothing was recorded or appended.
        :raises LedgerSealed: route the entries again, to the children, with the same sequences. Some of them may be
            stored here; their sequences identify these copies.
        :raises OutcomeUnknown: the entries may or may not be stored, as after a cancelled call. Send them again with
            the same sequences, or abandon the branch.
        """

    async def read(request: ReadRequest) -> EntryPage:
        """
        Return the readable entries after a position.

        An empty page whose ``upto`` has moved is progress. An empty page whose ``upto`` has not moved is the end for
        now.

        :raises EntryTrimmed: entries after the position existed and were trimmed.
        """

    async def max_read_position() -> Position:
        """Read the open transactions again, and return the announced position."""

    async def advanced(beyond: Position) -> Position:
        """
        Wait until max_read_position is after ``beyond``, or the segment is sealed and decided to its end; return it.

        In the second case the returned position is not after ``beyond``: there will never be more messages.

        :raises Closed: the buffer was closed.
        """

    async def finished(at: Position) -> bool:
        """Return whether the segment is sealed and everything in it is at or before ``at``."""

    async def resolve(branch: Branch) -> Visibility:
        """Return the stored state of a branch that wrote to this segment."""

    async def settle(ended: Transaction) -> None:
        """Make an outcome take effect here; idempotent, in any order, from any process; after a failure repeat it."""

    async def trim(ledger_id: int) -> SweepResult:
        """
        Trim whole ledgers, never past max_read_position, and then the abort records that no entry can need any more.

        If ``ledger_id`` is the first existing ledger, the segment loses no entry, but data of the buffer that it does
        not need any more is removed.
        """

    async def close() -> None:
        """Stop; calls that wait in ``advanced`` or for the recovery raise Closed; may be repeated."""


class IInPlaceBuffer(ITransactionBuffer):
    """
    A buffer whose entries stay in the segment's own ledger, at the positions that ``append`` returned.

    What an open transaction wrote holds back everything behind it, in whatever order transactions end. Once decided, it
    is read in the order of these positions, or reported as skipped. A reader of uncommitted messages receives it from
    the start.
    """


class ICommitOrderBuffer(ITransactionBuffer):
    """
    A buffer in which a transaction's messages get their positions with its commit.

    They are read in the order of the commits, and those of one transaction are adjacent: an entry of several messages
    is at the position of the commit. Before the commit they have no position in the segment and hold nothing back.
    Messages outside transactions are read immediately, whatever is open. Aborted messages are never encountered. A
    reader of uncommitted messages receives the committed ones. For a message in a transaction ``append`` returns a
    position after every ledger of the segment: nothing is read there, and nothing will be stored there.
    """


class ISealableBuffer(IInPlaceBuffer):
    """
    A buffer whose segment can be sealed and then given to a buffer of another family, by a migration of its topic.

    Obligation. While the topic's record has a decided migration, ``settle`` succeeds on the sealed segment. It first
    stores an abort record for every branch of the transaction that has entries here and does not count. So a
    transaction is forgotten only after its outcome here is durable. A sealed segment without a migration may refuse.
    """


class IAdoptingBuffer(ITransactionBuffer):
    """
    A buffer that can serve a sealed segment which was written through a buffer of another family.

    The families are named in ``SegmentContext.settled_families``. All of their transactions have ended, and every
    branch of them that does not count has an abort record in each of the segment's ledgers that may hold its entries.
    Control entries of the other family (``Branch.is_control``) are never returned.
    """


class IPlannableBuffer(IInPlaceBuffer):
    """
    A buffer whose readable messages are all in the segment's own ledger, so that a plan can be read without the buffer.

    An IJointCoordinator of its family may append entries to the ledger, past the buffer. The buffer reads them by the
    rules for committed transactions without operations.
    """

    async def tail_seen() -> Position:
        """
        Return a position of the ledger's end that was seen before, without I/O.

        Entries of a later step are behind it.
        """

    async def appended_jointly(last: Position) -> None:
        """Note that a step has appended entries up to ``last``; readers that wait in ``advanced`` wake."""

    async def plan(after: Position, upto: Position) -> ReadPlan:
        """
        Return a plan for a range whose end some process has announced; the range is never shortened.

        If this process computes less than ``upto``, the call waits until this process catches up. A plan is valid as
        long as the data.

        :raises EntryTrimmed: entries of the range existed and were trimmed.
        """
