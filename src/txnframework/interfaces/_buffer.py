"""ITransactionBuffer: one topic's or segment's writes and what may be read."""

from __future__ import annotations

from zope.interface import Attribute, Interface

from txnframework.model.ids import Branch
from txnframework.model.ledger import Append, Appended
from txnframework.model.positions import Position
from txnframework.model.reading import EntryPage, ReadPlan, ReadRequest, Visibility
from txnframework.model.transactions import Swept, Transaction


class ITransactionBuffer(Interface):
    """
    All appends and all reads of one segment go through its buffer: hence no path shows an aborted or undecided
    message.

    Obligations.

    * An entry with a branch is appended only after its intent is durable, to the ledger that the intent names.
    * ``max_read_position``, once announced, never moves back; everything up to it is decided.
    * Whether an entry is aborted is decided when it is read. One that a transaction of another family wrote cannot be
      judged: ``recover`` or reading it raises ConfigurationError, and it is neither shown nor passed over.
    * Waiting for an announcement reads nothing from the store while nothing changes.
    """

    segment: str = Attribute("Full name of the segment or topic.")

    async def recover() -> Position:
        """
        Read what is open and return max_read_position; the other methods wait for it, or start it.

        :raises StoreMismatch: ledger and metadata do not belong together (an ``after`` or abort record past the
            ledger's end).
        :raises ConfigurationError: the segment was written through a buffer that this one cannot stand in for.
        """

    async def append(entries: tuple[Append, ...]) -> tuple[Appended, ...]:
        """
        Publish; the entries of one call are all of one branch, or all of none, and of one principal.

        A branch that is not admitted yet is admitted for the principal that the transaction belongs to, if it belongs
        to one.

        An entry whose sequence is stored already is confirmed when the earlier copy counts or will (committed, or the
        same branch of the same open transaction): ``duplicate`` is then True. A copy that does not count (aborted) is
        replaced. A batch whose sequences are partly stored is reported as a duplicate with the earlier copy's
        ``sequence``; the caller sends the rest.

        :raises TransactionConflict: the transaction has ended, or the earlier copy of an entry belongs to another open
            transaction or branch; that entry was not appended, other entries of the call may stand in the branch. Give
            the branch up; without a branch, send again with the same sequences once the other transaction has ended.
        :raises TransactionNotFound: the transaction never began or was forgotten; as for the conflict.
        :raises TransactionDomainMismatch: the transaction is of another family; nothing was appended.
        :raises NotTransactionOwner: the transaction belongs to another principal; nothing was recorded or appended.
        :raises LedgerSealed: route the entries again, to the children, with the same sequences: some may stand here,
            and are found by their sequence as copies.
        :raises OutcomeUnknown: as for a cancelled call, they may or may not stand there; send again with the same
            sequence, or give the branch up.
        """

    async def read(request: ReadRequest) -> EntryPage:
        """
        Return what may be read after a position; an empty page with ``upto`` moved is progress, one without is the end
        for now.

        :raises EntryTrimmed: entries after the position were there and are gone.
        """

    async def max_read_position() -> Position:
        """Return the announced position after reading again what is open now."""

    async def advanced(beyond: Position) -> Position:
        """
        Wait until max_read_position is beyond ``beyond`` and return it; or until the segment is sealed and decided to
        its end.

        In the second case the answer is not beyond: there will never be more.

        :raises Closed: the buffer was closed.
        """

    async def finished(at: Position) -> bool:
        """Return whether the segment is sealed and everything in it stands at or before ``at``."""

    async def resolve(branch: Branch) -> Visibility:
        """Return what is known of a branch that wrote to this segment, reading, never guessing."""

    async def settle(ended: Transaction) -> None:
        """Make an outcome take effect here; idempotent, in any order, from any process; after a failure repeat it."""

    async def trim(ledger_id: int) -> Swept:
        """
        Trim whole ledgers, never past max_read_position, then the abort records that no entry can need any more.

        With the first ledger that is left nothing of the segment goes, but what the buffer keeps beside it is tidied.
        """

    async def close() -> None:
        """Stop; waiting ``advanced`` calls, and whoever waits for the recovery, raise Closed; may be repeated."""


class IInPlaceBuffer(ITransactionBuffer):
    """
    A buffer whose entries stand in the segment's own ledger where ``append`` said, from then on.

    What an open transaction wrote holds back everything behind it, in whatever order transactions end. Once decided it
    is read in the order of these places, or told as skipped. Who reads uncommitted is shown it from the beginning.
    """


class ICommitOrderBuffer(ITransactionBuffer):
    """
    A buffer in which a transaction's messages get their places with its commit.

    They are read in the order of the commits, those of one transaction adjacent: an entry of several messages stands
    where the commit does. Until then they have no place in the segment and hold nothing back, messages outside
    transactions are read at once whatever is open, and what is aborted is never come across. Who reads uncommitted is
    shown what was committed. What ``append`` tells of a message in a transaction
    is a place behind every ledger of the segment: nothing is read there, and nothing will stand there.
    """


class IPlannableBuffer(IInPlaceBuffer):
    """A buffer whose readable messages all stand in the segment's own ledger, so that a plan can be read without it."""

    async def plan(after: Position, upto: Position) -> ReadPlan:
        """
        Return a plan for a range whose end was announced once, by whichever process; it is never shortened.

        Waits when this process computes less than ``upto`` until it catches up. Valid as long as the data.

        :raises EntryTrimmed: entries of the range were there and are gone.
        """
