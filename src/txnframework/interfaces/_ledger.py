"""ILedgerStore and IManagedLedger: append-only entries of one topic or segment."""

from __future__ import annotations

from zope.interface import Attribute, Interface

from txnframework.interfaces._metadata_store import IWatch
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
    location: object = Attribute("The ``ILedgerStore.location`` of its store.")
    reference: object = Attribute(
        "Names this ledger, and no later one of its name, in ``LedgerAppend``; equal for all handles of one ledger."
        " Unused if the location is None."
    )

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


class ILedgerStore(Interface):
    """
    Creates, finds and deletes managed ledgers.

    Obligation. Names that hold two escaped names of ``model.names.NAME_BYTES_MAX`` bytes are kept whole, and so are
    producers' names of so many bytes.
    """

    identity: str = Attribute("Identity of the metadata store it belongs to; opening under another is refused.")
    location: object = Attribute(
        "The database that has the ledgers, if steps of a metadata store with an equal ``location`` may append to them."
        " Otherwise None."
    )

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
