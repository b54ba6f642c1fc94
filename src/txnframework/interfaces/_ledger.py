"""ILedgerStore and IManagedLedger: append-only entries of one topic or segment."""

from __future__ import annotations

from zope.interface import Attribute, Interface

from txnframework.interfaces._metadata_store import IWatch
from txnframework.model.ids import Branch
from txnframework.model.ledger import Append, Appended, Counted, LedgerEntry, LedgerSummary, Remembered, Tail
from txnframework.model.positions import EntryRange, Limit, Position


class ITellingTailWatch(IWatch):
    """
    A watch on a ledger's tail that may bring along what was appended.

    How it is used: entries that stand directly behind the last one that the watcher knows are as good as read, and the
    tail is as it was but for them; whatever else is told makes it read.

    Obligations.  Each entry was read by this process from the store itself, with its own rights, and never taken from a
    notification. It is confirmed and stands where it says, whole. ``appended`` is None if anything else than
    what it holds has changed since the return of ``changed`` before the last one, or may have.
    """

    appended: tuple[LedgerEntry, ...] | None = Attribute(
        "The entries that the last return of ``changed`` told of, in their order; None: it did not tell all."
    )


class IManagedLedger(Interface):
    """
    A row of ledgers, the last of them open; entries 0, 1, 2, ... without gaps in each. Any process may append and
    read.

    Obligations.

    * An append goes to one named ledger and is refused, atomically, when that ledger is no longer the open one or the
      row is sealed: a writer that was paused for ever can never append behind records that were cleaned up.
    * Once a last confirmed position was returned, no entry at or below it can appear any more, in any process.
    * ``(producer, sequence)`` is checked atomically with assigning the position, over at least the last
      sequences of each producer, as many as ``Remembered.window`` says, also after a restart and after the entries were
      trimmed.

    Freedoms. What is older than these may be forgotten: sent again, it is appended again, as if it was new. A producer
    that has appended nothing for a long time, days by default and named by an option of the store, may be forgotten
    with its window when ledgers are trimmed: a name that writes once would otherwise stay for ever.
    Whoever sends again after so long is not recognized.
    """

    name: str = Attribute("Its name in the store.")

    async def append(entries: tuple[Append, ...], ledger_id: int | None) -> tuple[Appended, ...]:
        """
        Append durably, in order, adjacent, to ``ledger_id`` and no other; None: to whichever is open (entries without
        a branch only).

        An entry whose sequence (or part of it) stands there already is not appended but reported as a duplicate, with
        the earlier copy's position, branch and sequence, unless it names that very copy in ``replaces``; the other
        entries of the call are appended all the same.

        :raises LedgerClosed: ``ledger_id`` is no longer the open one; nothing was appended.
        :raises LedgerSealed: the row is sealed; nothing was appended.
        :raises OutcomeUnknown: all or nothing was appended (as for a cancelled call); send again with the same
            sequence.
        """

    async def find_sequence(producer: str, sequence: int) -> Appended | None:
        """Return the copy of this sequence that counts in the deduplication window, or None; also when sealed."""

    async def remembered(producer: str, sequence: int) -> Remembered:
        """
        Return what is remembered of a producer, and how much of it above a sequence; also when sealed.

        For counting what may have been stored twice; nothing is decided by it.
        """

    async def tail() -> Tail:
        """Return last confirmed position, open ledger and sealed flag, as one consistent fact."""

    async def read(entries: EntryRange, limit: Limit) -> tuple[LedgerEntry, ...]:
        """
        Return the first entries of the range in order; empty only when none is left in it.

        :raises EntryTrimmed: entries of the range were there and are gone.
        :raises CorruptEntry: names the position.
        """

    async def count(entries: EntryRange, messages_max: int) -> Counted:
        """
        Return how far ``messages_max`` messages reach into the range, always by whole entries and by at least one.

        ``upto`` is the last entry counted (``entries.after`` when there is none), and ``appended_ms`` tells when it was
        appended, by the clock that ``find_time`` searches by; reads no data. For lag and admission.
        """

    async def ledgers(after: int, items_max: int) -> tuple[LedgerSummary, ...]:
        """
        Return the first ledgers that are left behind the ledger id ``after``, in order; reads no data.

        The last of all is the open one. What is told of a closed ledger never changes.
        """

    async def find_time(published_ms: int) -> Position:
        """
        Return the position before the first entry that was appended at or after ``published_ms``, by the store's
        clock.
        """

    async def roll() -> Tail:
        """Close the open ledger for ever and open the next, unless it is sealed or empty; ids are never used again."""

    async def seal() -> Tail:
        """Refuse appends for ever; may be repeated, with the same answer."""

    async def trim(ledger_id: int, aborted: frozenset[Branch]) -> int:
        """
        Drop closed ledgers below ``ledger_id``, in a bounded step; return the first ledger that is left.

        Every entry below is decided: ``aborted`` holds all branches with entries there that do not count; others may be
        in it. Before a ledger goes, the window's copies in it are settled, since who would ask for the outcome later
        finds nothing left to tell it: a copy of a branch in ``aborted`` is forgotten, any other one counts and is
        reported without a branch from then on. Repeating it after any failure is safe.
        """

    async def watch() -> IWatch:
        """Return an armed watch on the tail."""

    async def close() -> None:
        """Let go; what was confirmed stays, appends in flight end as OutcomeUnknown; may be repeated."""


class ILedgerStore(Interface):
    """
    Makes, finds and deletes managed ledgers.

    Obligation.  Names that hold two escaped names of ``model.names.NAME_BYTES_MAX`` bytes are carried whole, as are
    producers' names of so many bytes.
    """

    identity: str = Attribute("Identity of the metadata store it belongs to; opening under another is refused.")

    async def create(name: str) -> IManagedLedger:
        """Make an empty one, or open the one that is there; repeating it after any failure is safe."""

    async def open(name: str) -> IManagedLedger:
        """
        Open it.

        :raises LedgerNotFound: it is not there.
        """

    async def delete(name: str, upto_ledger_id: int | None) -> None:
        """
        Remove it with its data; an absent one succeeds; its ledger ids do not return when the name is made again.

        What is open of it, in whichever process, stays what it was: it raises LedgerNotFound (or Closed) from then on,
        and never reads or changes what is made under the name later.

        ``upto_ledger_id``: unless its open ledger has a higher id, decided atomically. Since ids never return, whoever
        read the id, and was paused, does not remove what was made under this name since.
        """

    async def list_names(prefix: str, after: str, items_max: int) -> tuple[str, ...]:
        """Return names that begin with ``prefix``, in order, after ``after``."""

    async def highest_txn_numbers() -> dict[int, int]:
        """Return the highest transaction number ever appended, by coordinator; survives trimming and deletion."""

    async def close() -> None:
        """Let go of every ledger; may be repeated."""
