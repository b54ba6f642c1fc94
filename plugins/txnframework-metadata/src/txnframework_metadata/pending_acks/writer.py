"""
Writes of acknowledgment records: new ones, and extensions of a branch's existing record.

*Put, then look* also holds for a record that grows. A record grows by a compare-and-set in one step with the
check that the header is OPEN, and the process looks for conflicts afterwards. So of two transactions that acknowledge
one message, the one that wrote last sees the other's acknowledgment, in a new record or in a grown one. The record
keeps its key and its index entry, so no scan can miss it. Three more rules apply:

* Only the process that wrote a record lets it grow, and only from a version all of whose acks it has confirmed. The
  previous content is therefore known, and withdrawing a part means writing the rest.
* A part is withdrawn on condition that the header is still OPEN. So a record whose transaction has ended never changes.
  An error that reports that nothing was recorded is therefore true.
* Settling reads the records *after* it saw that the transaction has ended, and deletes them if unchanged since. A
  record read before the end may hold a part that was withdrawn since, or lack one that was added.

Crash windows: a lost reply is resolved by reading the record; its version and value show the outcome. A transaction
that ends between the two steps is detected by the header check of a withdrawal, and by the cursor that the process
reads in the second step. A process
that dies after its put leaves a part that was never confirmed. The part counts if the commit lists the branch, and is
removed with the transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from txnframework.errors import (
    Closed,
    OutcomeUnknown,
    TxnFrameworkError,
    Unavailable,
    VersionMismatch,
)
from txnframework.interfaces import IMetadataStore
from txnframework.model.ack_overlap import joined
from txnframework.model.acks import Ack
from txnframework.model.metadata import Check, Delete, Put
from txnframework.model.paths import header_key
from txnframework.model.records import AckDocument, AckOperation, encode
from txnframework.model.steps import Step
from txnframework.model.transactions import State
from txnframework_metadata.records.headers import Header, read_header
from txnframework_metadata.records.operations import (
    STEPS_TOGETHER_MAX,
    operation_indexes,
    put_operations,
    require_open,
)
from txnframework_metadata.records.views import StoredOperation, ack_document, operation_of

Part = tuple[int, Ack]
"""An acknowledgment, with the number of its request in the group."""


@dataclass(frozen=True, slots=True)
class Draft:
    """
    The planned content of one record: of ``before``, which grows, or of a new one.

    ``blank`` is the record without acks.
    """

    blank: AckOperation
    parts: tuple[Part, ...]
    before: StoredOperation | None = None

    def holding(self, requests: Collection[int]) -> AckOperation | None:
        """Return the record with the parts of these requests only; None if nothing is left of it."""
        some = [ack for number, ack in self.parts if number in requests]
        if not some:
            before = None if self.before is None else self.before.document
            return before if isinstance(before, AckOperation) else None
        return self._document(self._joined(some))

    @property
    def whole(self) -> tuple[AckOperation, tuple[Ack, ...]]:
        """The record with all parts, and its acknowledgments."""
        acks = self._joined([ack for _, ack in self.parts])
        return self._document(acks), tuple(acks)

    def _joined(self, some: list[Ack]) -> list[Ack]:
        return joined(some if self.before is None else [*self.before.acks, *some])

    def _document(self, acks: list[Ack]) -> AckOperation:
        """
        Return the record with these acks.

        The previous acks are not encoded again: otherwise n calls would cost n squared.
        """
        documents: list[AckDocument] = []
        if self.before is not None and isinstance(self.before.document, AckOperation):
            standing = zip(acks, self.before.acks, self.before.document.acks, strict=False)
            documents = [stored if now is earlier else ack_document(now) for now, earlier, stored in standing]
        documents += [ack_document(ack) for ack in acks[len(documents) :]]
        return msgspec.structs.replace(self.blank, acks=documents)


@dataclass(frozen=True, slots=True)
class Change:
    """A draft that was written; ``now`` is the record as written."""

    draft: Draft
    now: StoredOperation

    def confirmed(self, requests: Collection[int]) -> StoredOperation | None:
        """Return the part of the record that is confirmed even if the withdrawal of the rest is unknown, or None."""
        document = self.draft.holding(requests)
        return None if document is None else msgspec.structs.replace(self.now, document=document)


def drafts(blank: AckOperation, parts: Iterable[Part], growing: StoredOperation | None, acks_max: int) -> list[Draft]:
    """Divide the parts of one kind: fill the record that grows up to its limit, and put the rest into new records."""
    found: list[Draft] = []
    before, some = growing, list[Part]()
    entries = {ack.position.entry for ack in growing.acks} if growing is not None else set()
    for number, ack in parts:
        entry = ack.position.entry
        if entry not in entries and len(entries) >= acks_max:
            if some:
                found.append(Draft(blank, tuple(some), before))
            before, some, entries = None, [], set()
        some.append((number, ack))
        entries.add(entry)
    if some:
        found.append(Draft(blank, tuple(some), before))
    return found


async def put_drafts(
    store: IMetadataStore, header: Header, planned: Sequence[Draft], page_records: int, changes: list[Change]
) -> None:
    """
    Write every draft on condition that the header is OPEN. ``changes`` receives the written records, also after an
    error.

    :raises TransactionConflict: the transaction has ended.
    :raises OutcomeUnknown: some drafts that are not in ``changes`` may be stored.
    """
    new: list[Draft] = []
    for draft in planned:
        now = None if draft.before is None else await _grow(store, header, draft.before, *draft.whole)
        if now is None:
            new.append(Draft(draft.blank, draft.parts))
        else:
            changes.append(Change(draft, now))
    if new:
        stored = await put_operations(store, header, [draft.whole[0] for draft in new], page_records)
        changes += [Change(draft, now) for draft, now in zip(new, stored, strict=True)]


async def _grow(
    store: IMetadataStore, header: Header, before: StoredOperation, document: AckOperation, acks: tuple[Ack, ...]
) -> StoredOperation | None:
    """Extend a record; return None if it was removed or changed, so that nothing was written."""
    txn_id, key = before.txn_id, before.record.key
    put = Put(key, encode(document), before.record.version, operation_indexes(txn_id, document))
    step = Step((Check(header_key(txn_id), header.version),), (put,))
    unknown: OutcomeUnknown | None = None
    for _ in range(2):
        try:
            (written,) = (await store.apply(step)).records
        except OutcomeUnknown as error:
            unknown = error
        except VersionMismatch:
            if unknown is None:
                # The transaction has ended; or another process of the branch repeated everything in this record, and
                # removed it.
                await require_open(store, txn_id)
                return None
        else:
            return StoredOperation.made(written, document, acks)
        # Only this process writes to the record, so reading it shows the outcome. If it is gone, it was settled, with
        # or without this part.
        try:
            found = await store.get(key)
        except (Unavailable, Closed) as error:
            raise OutcomeUnknown(f"{unknown}; then {error}") from unknown
        if found is None:
            break
        if found.version != before.record.version:
            return operation_of(found)
    raise OutcomeUnknown(f"an acknowledgment in {txn_id} may be recorded") from unknown


async def take_back(
    store: IMetadataStore, header: Header, changes: Sequence[Change], kept: Collection[int]
) -> list[StoredOperation]:
    """
    Withdraw the parts of all requests except those in ``kept``; return the records that are stored afterwards.

    :raises OutcomeUnknown: the parts may be stored, or have taken effect.
    """
    left: list[StoredOperation] = []
    parts: list[Put | Delete] = []
    for change in changes:
        record, document = change.now.record, change.draft.holding(kept)
        if document is None:
            parts.append(Delete(record.key, record.version))
        elif document != change.now.document:
            indexes = operation_indexes(change.now.txn_id, document)
            parts.append(Put(record.key, encode(document), record.version, indexes))
        else:
            left.append(change.now)
    check = Check(header_key(header.transaction.txn_id), header.version)
    for start in range(0, len(parts), STEPS_TOGETHER_MAX):
        some = parts[start : start + STEPS_TOGETHER_MAX]
        puts = tuple(one for one in some if isinstance(one, Put))
        try:
            deletes = tuple(one for one in some if isinstance(one, Delete))
            written = (await store.apply(Step((check,), puts, deletes))).records
        except VersionMismatch as error:
            await _require_without_effect(store, header, changes, error)
            return []
        except TxnFrameworkError as error:
            raise OutcomeUnknown(f"it could not be withdrawn: {error}") from error
        left += [operation_of(record) for record in written]
    return left


async def _require_without_effect(
    store: IMetadataStore, header: Header, changes: Sequence[Change], error: VersionMismatch
) -> None:
    """
    Raise OutcomeUnknown unless the transaction ended without this branch, so that the stored parts have no effect.

    If the branch was committed, the stored parts took effect or will. They cannot be withdrawn, and their check did not
    complete.
    """
    txn_id = header.transaction.txn_id
    try:
        now = await read_header(store, txn_id)
    except TxnFrameworkError as again:
        raise OutcomeUnknown(f"an acknowledgment in {txn_id} may have taken effect: {again}") from again
    ended = None if now is None or now.transaction.state is State.OPEN else now.transaction
    if ended is None or any(ended.counts(change.now.document.branch) for change in changes):
        raise OutcomeUnknown(f"{txn_id} ended while it was acknowledged in, which may have taken effect") from error
