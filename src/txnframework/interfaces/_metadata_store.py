"""IMetadataStore and its promises."""

from __future__ import annotations

from zope.interface import Attribute, Interface

from txnframework.model.metadata import (
    Batch,
    Expected,
    IndexRange,
    Key,
    KeyRange,
    Put,
    PutSequential,
    Record,
    RecordPage,
)


class IWatch(Interface):
    """
    A hint that something may have changed; armed from the moment it is handed out.

    How it is used: 1. open the watch, 2. read, 3. decide, 4. wait for ``changed`` when there is nothing to do, 5. go
    to 2. Because the watch is armed before the reading, no change falls between the two.

    Obligations.  After any change to what is watched, by any process, and after anything that may have hidden one (a
    lost connection, a missed notification), ``changed`` returns.

    Freedoms.  Wake-ups may coalesce, repeat, and come without a change: whoever can reach the backend's notifications
    may cause one, whatever its rights are. So nothing is decided by a wake-up but to read.
    """

    async def changed() -> None:
        """
        Return once anything may have changed since arming or since the last return; armed again before returning.

        If this is cancelled, the watch stays armed and nothing is missed.

        :raises Closed: the watch or its store was closed.
        """

    async def close() -> None:
        """Give the watch back; a waiting ``changed`` raises Closed; may be repeated."""


class ITellingWatch(IWatch):
    """
    A watch that may bring along what the record became.

    How it is used: ``told`` is as good as a reading after that change, and no more: others may have followed, and a
    change may bring nothing along. So it decides only what can never change again, as the end of a transaction; for
    everything else the watcher reads.

    Obligations.  It was read by this process from the store itself, with its own rights, and never taken from a
    notification. It is what a confirmed write of the watched record has written, whole, and never what was refused or
    undone.

    Freedoms.  Before anything has changed it may hold what the record was when the watch was armed.
    """

    told: bytes | None = Attribute(
        "The value written by one of the changes told of last; None: none was brought along."
    )


class ILease(Interface):
    """
    A record bound to the session of the store that took it.

    Nothing may rely on a lease for safety: a holder that was paused may believe in a lease that is gone. Put ``key``
    and ``version`` in a Check to make the store refuse what it does then.
    """

    key: Key = Attribute("The lease's record.")
    version: int = Attribute("The record's version, for a Check.")
    fencing: int = Attribute("Higher than that of every earlier holder of this name.")

    async def lost() -> None:
        """
        Return when the lease can no longer be relied on; never later than it can be granted to another.

        One that was broken may return later, or never: who breaks leases watches the record of its own.
        """

    async def release() -> None:
        """Give it up now; may be repeated, also after it was lost."""


class IMetadataStore(Interface):
    """
    Versioned records with secondary indexes, watches and leases: the place where transactions are decided.

    Obligations.

    * Every read sees every write that was confirmed before the read began, by whichever process.
    * A write is durable to the extent that the store promises when it is confirmed, and applies wholly or not at all.
    * A record's index entries change with it: at no crash point does one stand without the other.
    * Versions grow while a record lives.
    * Every key that ``model.paths`` makes of names of ``model.names.NAME_BYTES_MAX`` bytes is carried, two of them in
      one key included, and so are index keys of two such names. No key is cut short.
    * An operation that may or may not have been applied raises OutcomeUnknown and never a plain error. The same holds
      for one that is cancelled: it may or may not have been applied.

    Freedoms.  Versions and sequence numbers need not be dense. A record that was deleted and made again may start over
    with its versions. Sequence numbers of different callers need not follow the order of the calls.

    Every method may raise Unavailable (nothing was changed) and Closed.
    """

    identity: str = Attribute("Name given to the store when it was made, kept for ever; a ledger store remembers it.")
    session: str = Attribute("Name of this opening's session; leases and ``Begin.session`` refer to it.")

    async def get(key: Key) -> Record | None:
        """Return the record, or None."""

    async def put(write: Put) -> int:
        """
        Write a record and its index entries; return its new version.

        :raises VersionMismatch: the record is not as expected; nothing was changed.
        :raises OutcomeUnknown: read before trying again.
        """

    async def delete(key: Key, expected: Expected) -> None:
        """
        Remove a record and its index entries; an absent one under ANY or ABSENT succeeds.

        :raises VersionMismatch: the record is not as expected; nothing was changed.
        :raises OutcomeUnknown: read before trying again.
        """

    async def put_sequential(write: PutSequential) -> Key:
        """
        Write a record at ``prefix/<next number>`` (20 digits), in the partition of ``prefix``; return its key.

        No number is given twice while the prefix lives, also after the records with the highest ones were deleted and
        after a restart. The prefix lives while the record that names it lives (a transaction's operations end with it
        and its id never returns), so a store may forget the counter of a prefix without records only if it never gives
        a number again.

        :raises OutcomeUnknown: a record may stand under a number that was never told; scan the prefix.
        """

    async def scan(keys: KeyRange, items_max: int) -> RecordPage:
        """Return the first ``items_max`` records of the range in key order, and the range that is left."""

    async def scan_index(entries: IndexRange, items_max: int) -> RecordPage:
        """
        Return the records with an entry in the range in index-key order, once per entry, and the range that is left.
        """

    async def watch(target: Key | KeyRange | IndexRange) -> IWatch:
        """Return an armed watch on a record, on the records of a range, or on the records with entries in a range."""

    async def acquire_lease(name: str, holder: str) -> ILease:
        """
        Take the lease, or raise LeaseHeld at once, with the holder's name and the key to watch for its end.

        While it is held its record stands at ``paths.lease_key(name)`` and shows in scans and wakes watches as any
        other. If the reply is lost the lease may be held by this session until it ends; asking again then succeeds.
        """

    async def break_lease(name: str, version: int) -> None:
        """
        End another session's lease, if its record still has this version; who watches the record is woken.

        For a holder that is known to have been replaced, so that nobody waits for the end of its session. The former
        holder learns it from the record. An absent lease, or one of another version, stays as it is.

        :raises OutcomeUnknown: it may have ended; repeating it is safe.
        """

    async def close() -> None:
        """End the session: its leases go, its watches raise Closed; may be repeated."""


class IAtomicBatchStore(IMetadataStore):
    """
    A store that applies several steps of one partition key all or nothing.

    Its checks exclude a concurrent change of what they check: if a batch with a check of version 3 is confirmed, no
    change of that record from version 3 was decided before the batch and confirmed after it.
    """

    async def apply(batch: Batch) -> tuple[Record, ...]:
        """
        Apply every step, or none; return what the puts wrote, in their order.

        :raises VersionMismatch: names the first key that differed; nothing was changed.
        :raises OutcomeUnknown: all of it or nothing was applied; read before trying again.
        """


class INotifyingStore(IMetadataStore):
    """A store whose watches wake within a round trip of a change, without asking again and again."""


class ISharedStore(IMetadataStore):
    """A store whose other openings, in other processes, see one and the same data."""


class IDurableStore(IMetadataStore):
    """A store that keeps every confirmed write through the kill of this process and of its server."""
