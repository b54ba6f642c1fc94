"""ILedgerStore and IManagedLedger: append-only entries of one topic or segment."""

from __future__ import annotations

from zope.interface import Attribute, Interface

from txnframework.interfaces._co_commit import IDatabaseTransaction
from txnframework.interfaces._metadata_store import IWatch
from txnframework.model.colocated import IntendedAppend, IntendedAppended, JointAppend, JointAppended
from txnframework.model.ids import Branch
from txnframework.model.ledger import Append, Appended, LedgerEntry, LedgerSummary, MessageCount, Tail, WindowState
from txnframework.model.positions import EntryRange, Limit, Position


class IAppendedWatch(IWatch):
    """
    A watch on a ledger's tail that may carry the appended entries.

    How it is used: entries that directly follow the last entry that the watcher knows are as good as read, and nothing
    else of the tail has changed. In every other case the watcher reads.

    Obligations. This process read each entry from the store itself, with its own rights, and never took it from a
    notification. Each entry is confirmed, complete, and at its stated position. ``appended`` is None if anything else
    than its entries has changed, or may have, since the return of ``changed`` before the last one.
    """

    appended: tuple[LedgerEntry, ...] | None = Attribute(
        "The entries reported by the last return of ``changed``, in order; None: other changes are possible."
    )


class IManagedLedger(Interface):
    """
    A row of ledgers, of which the last is open; each holds entries 0, 1, 2, ... without gaps.

    Any process may append and read.

    Obligations.

    * An append goes to one named ledger. It is refused, atomically, if that ledger is no longer the open one or the row
      is sealed. So a writer can never append behind records that were cleaned up, however long it was paused.
    * After a last confirmed position was returned, no entry at or below it can appear any more, in any process.
    * ``(producer, sequence)`` is checked atomically with the assignment of the position. The check covers at least the
      last ``WindowState.window`` sequences of each producer, also after a restart and after the entries were trimmed.

    Freedoms. Older sequences may be forgotten: an entry that is sent again is then appended again, as if it were new. A
    producer that has appended nothing for a long time may be forgotten with its window when ledgers are trimmed.
    Otherwise a name that writes once would never be forgotten. The time is days by default, and an option of the store
    names it. Entries that are sent again after that time are not recognized.
    """

    name: str = Attribute("Its name in the store.")

    async def append(entries: tuple[Append, ...], ledger_id: int | None) -> tuple[Appended, ...]:
        """
        Append durably, in order and adjacent, to ``ledger_id`` and no other ledger.

        With ``ledger_id`` None the entries go to whichever ledger is open (only entries without a branch).

        An entry whose sequence, or part of it, is already stored is not appended. It is reported as a duplicate, with
        the earlier copy's position, branch and sequence, unless it names that very copy in ``replaces``. The other
        entries of the call are appended all the same.

        :raises LedgerClosed: ``ledger_id`` is no longer the open one; nothing was appended.
        :raises LedgerSealed: the row is sealed; nothing was appended.
        :raises OutcomeUnknown: all or nothing was appended, as after a cancelled call; send again with the same
            sequence.
        """

    async def find_sequence(producer: str, sequence: int) -> Appended | None:
        """Return the copy of this sequence that counts in the deduplication window, or None; also when sealed."""

    async def remembered(producer: str, sequence: int) -> WindowState:
        """
        Return which messages of a producer are remembered, and how many above a sequence; also when sealed.

        Used to count messages that may have been stored twice, and to find the last sequence id of a producer.
        """

    async def tail() -> Tail:
        """Return last confirmed position, open ledger and sealed flag, as one consistent fact."""

    async def read(entries: EntryRange, limit: Limit) -> tuple[LedgerEntry, ...]:
        """
        Return the first entries of the range in order; empty only if no entry is left in the range.

        :raises EntryTrimmed: entries of the range existed and were trimmed.
        :raises CorruptEntry: an entry is damaged; the error names its position.
        """

    async def count(entries: EntryRange, messages_max: int) -> MessageCount:
        """
        Return how far ``messages_max`` messages reach into the range, always in whole entries, and at least one entry.

        ``upto`` is the last entry counted, or ``entries.after`` if there is none. ``appended_ms`` is the time at which
        it was appended, by the clock that ``find_time`` searches by. Reads no data. Used for lag and admission.
        """

    async def ledgers(after: int, items_max: int) -> tuple[LedgerSummary, ...]:
        """
        Return the first ledgers that are left behind the ledger id ``after``, in order; reads no data.

        The last of all ledgers is the open one. The summary of a closed ledger never changes.
        """

    async def find_time(published_ms: int) -> Position:
        """
        Return the position before the first entry that was appended at or after ``published_ms``, by the store's clock.
        """

    async def roll() -> Tail:
        """
        Close the open ledger permanently and open the next one, unless the row is sealed or the open ledger is empty.

        Ledger ids are never used again.
        """

    async def seal() -> Tail:
        """Refuse appends permanently; may be repeated, and returns the same tail."""

    async def trim(ledger_id: int, aborted: frozenset[Branch]) -> int:
        """
        Delete closed ledgers below ``ledger_id``, in a bounded step; return the first ledger that is left.

        Every entry below is decided. ``aborted`` holds all branches with entries there that do not count; it may hold
        other branches. Before a ledger is deleted, the window's copies in it are settled, because their outcome may not
        be found later. A copy of a branch in ``aborted`` is forgotten. Any other copy counts, and is reported without a
        branch from then on. Repeating the call after any failure is safe.
        """

    async def watch() -> IWatch:
        """Return an armed watch on the tail."""

    async def close() -> None:
        """Release the ledger; confirmed entries stay, appends in flight raise OutcomeUnknown; may be repeated."""


class IColocatedLedger(IManagedLedger):
    """
    A ledger in a database that may also have a metadata store; it can append with the intent, in one step.

    The records are those of the IColocatedStore whose ``location`` is equal.
    """

    location: object = Attribute("The database that has the ledger.")
    reference: object = Attribute(
        "Names this ledger, and no later one of its name, in ``LedgerAppend``; equal for all handles of one ledger."
    )

    async def append_intended(request: IntendedAppend) -> IntendedAppended:
        """
        Write a write operation and append its entries, all or nothing, and durably.

        The operation names the open ledger and the last confirmed position before this step. Its record and the entries
        become visible at the same moment: no process sees an entry without the record. Each entry is
        appended, or reported as a duplicate, as by ``append``. The record is written in both cases.

        Obligation. The check excludes a concurrent change of the header, as a check of ``IMetadataStore.apply`` does.

        :raises VersionMismatch: the header is not as expected; nothing was written.
        :raises LedgerSealed: the row is sealed; nothing was written.
        :raises OutcomeUnknown: both were written, or nothing; send again with the same sequences.
        """


class ILedgerStore(Interface):
    """
    Creates, finds and deletes managed ledgers.

    Obligation. Names that hold two escaped names of ``model.names.NAME_BYTES_MAX`` bytes are kept whole, and so are
    producers' names of so many bytes.
    """

    identity: str = Attribute("Identity of the metadata store it belongs to; opening under another is refused.")

    async def create(name: str) -> IManagedLedger:
        """Create an empty managed ledger, or open the existing one; repeating the call after any failure is safe."""

    async def open(name: str) -> IManagedLedger:
        """
        Open a managed ledger.

        :raises LedgerNotFound: it does not exist.
        """

    async def delete(name: str, upto_ledger_id: int | None) -> None:
        """
        Delete a managed ledger with its data; an absent one succeeds.

        Its ledger ids are not used again when the name is created again. Open objects of the deleted one, in any
        process, raise LedgerNotFound (or Closed) from then on. They never read or change a ledger that is created under
        the name later.

        ``upto_ledger_id``: delete only if the open ledger has no higher id, which is decided atomically. Ids are never
        used again. So a process that read the id and was paused does not delete a ledger that was created since.
        """

    async def list_names(prefix: str, after: str, items_max: int) -> tuple[str, ...]:
        """Return names that begin with ``prefix`` and come after ``after``, in order."""

    async def highest_txn_numbers() -> dict[int, int]:
        """Return the highest transaction number ever appended, by coordinator; it survives trimming and deletion."""

    async def close() -> None:
        """Release every ledger; may be repeated."""


class IColocatedLedgerStore(ILedgerStore):
    """
    A store in a database that may also have a metadata store; it appends to many ledgers, with records, in one step.

    Its ledgers are IColocatedLedgers of the same ``location``. The records are those of the IColocatedStore whose
    ``location`` is equal.
    """

    location: object = Attribute("The database that has the ledgers.")

    async def append_jointly(request: JointAppend, transaction: IDatabaseTransaction | None = None) -> JointAppended:
        """
        Append entries to several ledgers and apply a batch of records, all or nothing, and durably.

        The entries of each ledger go to whichever of its ledgers is open, in order and adjacent, and have no
        sequences. Times, counts and the highest transaction numbers are the same as after ``append``. The batch has no
        PutSequential, and may be of several partitions; its records are as if ``IColocatedStore.apply`` had written
        them. Watches on the tails and on the records wake.

        Entries may have a branch, without an intent, if the batch puts the header of their transaction as committed
        with that branch. No process sees such an entry before the header, so it counts for every reader at all times.

        Obligations.

        * Atomically visible. After a process has seen one of the entries or records, each of its reads sees all of
          them. What one call of another method reads is from before the step, or from after it.
        * One refused part refuses everything.
        * Each check excludes a concurrent change of its record, as a check of ``IMetadataStore.apply`` does.
        * A record with an entry in a range of ``vacant`` refuses everything. The ranges are looked at while all records
          of the batch are held. Take another batch that checks one of the records that this one writes, with any
          expectation, and puts an entry into a range. It is confirmed before the look, and refuses this one, or it is
          applied after this one is visible.

        With a ``transaction``, the step is the last part of a transaction of the application, which
        ``ICoCommitStore.join_connection`` of the same location has joined. The first put of the batch creates a record.
        Nothing is visible before ``transaction.commit``, which the caller calls next. Until then another writer of that
        record waits for the end of the transaction, or makes its commit fail. So the record decides, also after a lost
        reply to the COMMIT. Other appends to the ledgers may wait, too; they are never between the entries of the step.
        If a part is refused, nothing of the step is written. The application's rows are kept, and its transaction is
        still open, if ``transaction.store_waits`` is None. Otherwise, and after any other error, it can only be rolled
        back.

        Freedoms. Entries of records that the batch itself writes may count as in the range. If several parts are
        refused, the error names any one of them.

        :raises LedgerSealed: a row is sealed; nothing was written.
        :raises LedgerNotFound: a ledger was deleted; nothing was written.
        :raises VersionMismatch: a record is not as expected, or has an entry in a range of ``vacant``; the error names
            it; nothing was written.
        :raises InvalidInput: with a ``transaction``: as ``IDatabaseTransaction.put``; or it reads one snapshot.
        :raises OutcomeUnknown: everything was written, or nothing, as after a cancelled call; read before trying again.
            A record that is put with the expectation ABSENT shows which: it exists if and only if everything was
            written. If a caller then puts that record itself, expecting its absence, the step cannot be applied while
            the record exists.
        """
