"""IMetadataStore, its watches and leases, and the promises that a store may add."""

from __future__ import annotations

from zope.interface import Attribute, Interface

from txnframework.model.metadata import Expected, IndexRange, Key, KeyRange, Put, Record, RecordPage
from txnframework.model.steps import Applied, Reach, Step


class IWatch(Interface):
    """
    A hint that something may have changed; armed from the moment it is returned.

    How it is used: 1. open the watch, 2. read, 3. decide, 4. wait for ``changed`` if there is nothing to do, 5. go to
    2. The watch is armed before the read, so no change falls between the two.

    Obligations. ``changed`` returns after any change of the watched record or range, by any process. It also returns
    after anything that may have hidden a change: a lost connection, a missed notification. A change counts also if a
    later one has undone it, such as a record that was written and deleted again, or an entry that was added to the
    range and removed.

    Freedoms. Wake-ups may coalesce, repeat, and come without a change. Anyone who can reach the backend's notifications
    may cause a wake-up, whatever their rights. So after a wake-up the watcher only reads the store.
    """

    async def changed() -> None:
        """
        Return when anything may have changed since arming or since the last return; armed again before returning.

        After a cancelled call the watch stays armed, and nothing is missed.

        :raises Closed: the watch or its store was closed.
        """

    async def close() -> None:
        """Close the watch; a waiting ``changed`` raises Closed; may be repeated."""


class IValueWatch(IWatch):
    """
    A watch that may carry the new value of the record.

    How it is used: ``value`` is as good as a read after that change, and no more. Other changes may have followed, and
    a change may carry no value. So ``value`` decides only what can never change again, such as the end of a
    transaction. For everything else the watcher reads.

    Obligations. This process read the value from the store itself, with its own rights, and never took it from a
    notification. The value is the complete value that a confirmed write stored in the watched record. It is never a
    value that was refused or undone.

    Freedoms. Before any change, ``value`` may hold the value that the record had when the watch was armed.
    """

    value: bytes | None = Attribute(
        "The value written by one of the changes last reported; None: the watch reported no value."
    )


class ILease(Interface):
    """
    A record bound to the store session that acquired it.

    Nothing may rely on a lease for safety: a paused holder may believe in a lease that has ended. Put ``key`` and
    ``version`` in a Check, so that the store refuses the writes of such a holder.
    """

    key: Key = Attribute("The lease's record.")
    version: int = Attribute("The record's version, for a Check.")
    fencing: int = Attribute("Higher than that of every earlier holder of this name.")

    async def lost() -> None:
        """
        Return when the lease can no longer be relied on; never later than it can be granted to another holder.

        For a lease that was broken the call may return later, or never. Where leases are broken, a holder watches the
        record of its own lease.
        """

    async def release() -> None:
        """Release the lease now; may be repeated, also after it was lost."""


class IMetadataStore(Interface):
    """
    Versioned records with secondary indexes, watches and leases; transactions are decided here.

    Obligations.

    * Every read sees every write, by any process, that was confirmed before the read began.
    * A confirmed write is durable to the extent that the store promises. A write applies completely or not at all.
    * A record's index entries change together with it: at no crash point does one exist without the other.
    * Versions grow while a record exists.
    * Every key that ``model.paths`` makes of names of ``model.names.NAME_BYTES_MAX`` bytes is stored whole. This
      includes keys and index keys with two such names.
    * An operation that may or may not have been applied raises OutcomeUnknown and never a plain error. A cancelled
      operation may or may not have been applied, too.

    Freedoms. Versions and sequence numbers need not be dense. The versions of a record that was deleted and created
    again may start over. Sequence numbers of different callers need not follow the order of the calls.

    Every method may raise Unavailable (nothing was changed) and Closed.
    """

    identity: str = Attribute(
        "Name given to the store when it is created; it never changes. Ledger stores keep it too."
    )
    session: str = Attribute("Name of this opening's session; leases and ``Begin.session`` refer to it.")
    reach: Reach = Attribute("How wide a step may be; PARTITION is what every store takes.")
    location: object = Attribute(
        "With the reach DATABASE, the database: steps append to ledgers of the ILedgerStore whose location is equal."
        " Otherwise None."
    )

    async def get(key: Key) -> Record | None:
        """Return the record, or None."""

    async def put(write: Put) -> int:
        """
        Write a record and its index entries; return its new version.

        :raises VersionMismatch: the record is not as expected; nothing was changed.
        :raises OutcomeUnknown: the write may have been applied; read before trying again.
        """

    async def delete(key: Key, expected: Expected) -> None:
        """
        Delete a record and its index entries; deleting an absent record under ANY or ABSENT succeeds.

        :raises VersionMismatch: the record is not as expected; nothing was changed.
        :raises OutcomeUnknown: the deletion may have been applied; read before trying again.
        """

    async def apply(step: Step) -> Applied:
        """
        Make a step: all of it takes effect, or nothing does.

        ``reach`` says what a step may have. Its checks exclude a concurrent change of the checked record. Take a
        confirmed step with a check of version 3: no change of that record from version 3 was decided before the step
        and confirmed after it.

        A PutSequential writes a record at ``prefix/<next number>`` (20 digits), in the partition of ``prefix``. No
        number is given twice while the prefix lives, also not after a restart, and not after the records with the
        highest numbers were deleted. The prefix lives while the record that names it exists: a transaction's operations
        end with it, and its id is never used again. So a store may forget the counter of a prefix without records only
        if it never gives a number again.

        Obligations of a store with the reach DATABASE.

        * Atomically visible. After a process has seen one of the entries or records of a step, each of its reads sees
          all of them. What one call of another method reads is from before the step, or from after it. Watches on the
          tails and on the records wake.
        * Times, counts and the highest transaction numbers are the same as after ``IManagedLedger.append``.
        * Entries may have a branch if the step has an intent, or puts the header of their transaction as committed with
          that branch. The operation of an intent names the open ledger and the last confirmed position before the
          step, and is written also if each entry is reported as a duplicate, as by ``append``.
        * A record with an entry in a range of ``vacant`` refuses the step. The ranges are looked at while all records
          of the step are held. Take another step that checks one of the records that this one writes, with any
          expectation, and puts an entry into a range. It is confirmed before the look, and refuses this one, or it is
          made after this one is visible. Entries of records that the step itself writes may count as in the range.

        If several parts are refused, the error names any one of them; of several records, the first one in the order of
        checks, puts and deletes if the step has neither appends nor vacant ranges.

        :raises VersionMismatch: a record is not as expected, or has an entry in a range of ``vacant``; the error names
            it; nothing was changed.
        :raises LedgerSealed: a ledger is sealed; nothing was changed.
        :raises LedgerNotFound: a ledger was deleted; nothing was changed.
        :raises ValueError: ``model.steps.require_valid`` refuses the step, or a ledger is of another location; nothing
            was changed.
        :raises OutcomeUnknown: all or nothing was applied, as after a cancelled call; read before trying again. A step
            with an intent may be made again with the same sequences; its operation may then be stored twice. A
            sequential record may be stored under a number that was never returned; scan the prefix. A record that is
            put with the expectation ABSENT shows which: it exists if and only if everything was written. If a caller
            then puts that record itself, expecting its absence, the step cannot be made while the record exists.
        """

    async def scan(keys: KeyRange, items_max: int) -> RecordPage:
        """Return the first ``items_max`` records of the range in key order, and the remaining range."""

    async def scan_index(entries: IndexRange, items_max: int) -> RecordPage:
        """Return the records with an entry in the range in index-key order, once per entry, and the remaining range."""

    async def watch(target: Key | KeyRange | IndexRange) -> IWatch:
        """Return an armed watch on a record, on the records of a range, or on the records with entries in a range."""

    async def acquire_lease(name: str, holder: str) -> ILease:
        """
        Acquire the lease, or raise LeaseHeld immediately, with the holder's name and the key to watch for its end.

        While the lease is held, its record is stored at ``paths.lease_key(name)``, appears in scans and wakes watches
        like any other record. Its value is a JSON object whose ``holder`` is this name. If the reply is lost, this
        session may hold the lease until the session ends; acquiring it again then succeeds.
        """

    async def break_lease(name: str, version: int) -> None:
        """
        End another session's lease, if its record still has this version; watches of the record wake.

        Use it for a holder that is known to have been replaced, so that no process waits for the end of its session.
        The former holder learns of it from the record. An absent lease, or one with another version, is unchanged.

        :raises OutcomeUnknown: the lease may have ended; repeating the call is safe.
        """

    async def close() -> None:
        """End the session: its leases end, its watches raise Closed; may be repeated."""


class INotifyingStore(IMetadataStore):
    """A store whose watches wake within a round trip of a change, without polling."""


class ISharedStore(IMetadataStore):
    """A store that several processes may open; all of them see the same data."""


class IDurableStore(IMetadataStore):
    """A store that keeps every confirmed write, even if this process and its server are killed."""
