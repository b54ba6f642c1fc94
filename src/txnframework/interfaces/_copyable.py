"""ICopyableMetadataStore and ICopyableLedgerStore: stores that can be copied to another store, of any kind."""

from __future__ import annotations

from txnframework.interfaces._ledger import ILedgerStore
from txnframework.interfaces._metadata_store import IMetadataStore
from txnframework.model.metadata import IndexRange, KeyRange
from txnframework.model.positions import EntryRange, Limit, Position
from txnframework.model.store_copy import IndexedPage, IndexPage, LedgerShape, RememberedSequence, StoredEntry


class ICopyableMetadataStore(IMetadataStore):
    """
    A metadata store whose records can be read with their index entries, and that can continue another store's numbers.

    How it is used: an operator's command copies all records but the leases into an empty store, while no other process
    has either of them open. 1. ``skip_numbers`` of the target with ``last_number`` of the source, 2. ``scan_indexed``
    of the source and ``put`` of the target. A record gets another version in the target: no record names the version
    of another one. The command may die after any call, and repeats all of them.
    """

    async def scan_indexed(keys: KeyRange, items_max: int) -> IndexedPage:
        """Return the first records of the range with their index entries, as ``scan`` does."""

    async def scan_entries(entries: IndexRange, items_max: int) -> IndexPage:
        """
        Return the first entries of an index in order of index key and record, with the keys of their records.

        They are read from the index itself. So an entry that leads to no record, or that its record does not have, is
        returned too, unless ``scan_index`` passes over it.
        """

    async def last_number() -> int:
        """
        Return a number that is not below any number that a PutSequential got, under any prefix.

        Of a number of 20 digits only the last 19 count: a store may use the first digit for its own purposes.
        """

    async def skip_numbers(number: int) -> None:
        """
        Give no number up to ``number`` from now on, for any prefix, in the sense of ``last_number``.

        Repeating the call is safe, also with a lower number, which changes nothing.

        :raises InvalidInput: this store cannot count so far.
        """


class ICopyableLedgerStore(ILedgerStore):
    """
    A ledger store whose ledgers can be read completely, and that can take the ledgers of another store over.

    Everything that has been given out as a name keeps its meaning: positions, ledger ids, times, and the sequences of
    producers.

    How it is used: an operator's command copies into an empty store, while no other process has either of them open.
    The target belongs to an identity that no metadata store has, so that it cannot be opened for use before the copy
    is complete.

    1. ``skip_ids`` of the target.
    2. For each name: ``ledger_shape`` of the source, then ``import_ledger``, ``import_entries`` in order up to the last
       entry, and ``import_sequences`` in order up to the last one.

    Crash windows. The command may die after any call. A managed ledger may then have a part of its entries, or all of
    them and a part of its window. ``import_ledger`` reports the entries that it has, and sequences are imported again
    from the first. Until its import is complete, a managed ledger may answer every other call wrongly.
    """

    async def last_ledger_id() -> int:
        """Return an id that is not below that of any ledger the store has had, also of deleted names."""

    async def skip_ids(ledger_id: int, txn_numbers: dict[int, int]) -> None:
        """
        Give no ledger id up to ``ledger_id`` from now on, and raise ``highest_txn_numbers`` to these numbers.

        Repeating the call is safe, also with lower numbers, which change nothing.

        :raises InvalidInput: this store cannot count so far.
        """

    async def ledger_shape(name: str) -> LedgerShape:
        """
        Return what a managed ledger is apart from its entries and its window; reads no data.

        :raises LedgerNotFound: it does not exist.
        """

    async def stored_entries(name: str, entries: EntryRange, limit: Limit) -> tuple[StoredEntry, ...]:
        """
        Return the first entries of the range in order, as ``IManagedLedger.read`` does.

        :raises CorruptEntry: an entry is damaged or missing; the error names its position.
        """

    async def remembered_sequences(
        name: str, after: RememberedSequence | None, items_max: int
    ) -> tuple[RememberedSequence, ...]:
        """
        Return the first copies in the deduplication window behind ``after`` (None: from the start).

        They are in the order of the producers' names, by code points, and of their last sequences.
        """

    async def import_ledger(name: str, shape: LedgerShape) -> Position:
        """
        Create a managed ledger of this shape, or find the one that such a call created.

        Return the last entry that was imported; before the first one, ``shape.whole.after``.

        :raises InvalidInput: the store cannot keep these ledger ids.
        """

    async def import_entries(name: str, entries: tuple[StoredEntry, ...]) -> None:
        """
        Add entries to a managed ledger that is being imported, in order; those of one ledger all or none.

        The first entry directly follows the last one that was imported: it is the next one of the same ledger, or the
        first one of the next ledger with entries.

        After another error than the one below, those of the first ledgers among them may be added, or all;
        ``import_ledger`` reports what.

        :raises InvalidInput: another entry has to follow; nothing was added.
        """

    async def import_sequences(name: str, sequences: tuple[RememberedSequence, ...]) -> None:
        """
        Add copies to the deduplication window of a managed ledger that is being imported.

        They are in the order of ``remembered_sequences``. Those that were added before are left as they are. After an
        error the first ones may be added, or all.

        :raises OutcomeUnknown: the last ones may be added or not; repeat the call.
        """
