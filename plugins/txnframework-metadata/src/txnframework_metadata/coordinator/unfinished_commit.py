"""
Commits by a process that does not know whether operations of the branches are under way, as in ``Client.commit``.

The owner waits for its own operations, and then one compare-and-set is enough. Another process cannot wait for them.
The owner may be paused between its check that the header is OPEN and its append. If the transaction were committed
meanwhile, the append would be added to messages that readers have seen. So these steps precede the compare-and-set:

1. The header, still OPEN, gets the branches of the commit. From then on no operation can be put, so no branch is
   admitted to another ledger.
2. The operations are read.
3. Each open ledger that they name is closed. A closed ledger refuses every later append, of whatever process.

An empty ledger cannot be closed. If it is the open one, a branch may still append its first entry there: a send to it
is under way, or failed. Then the commit is refused.

Crash windows: after each step the transaction is open, and nothing has taken effect. The same commit can be repeated,
the owner can end the transaction, and its timeout aborts it.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec

from txnframework.errors import LedgerNotFound, OutcomeUnknown, TransactionConflict, Unavailable, VersionMismatch
from txnframework.interfaces import ILedgerStore, IManagedLedger, IMetadataStore
from txnframework.model.ids import TxnID
from txnframework.model.metadata import Put
from txnframework.model.records import WriteOperation, encode
from txnframework.model.transactions import End, State
from txnframework_metadata.options import CoordinatorOptions
from txnframework_metadata.records.headers import (
    header_indexes,
    read_header,
    require_owner,
    require_separate_end,
)
from txnframework_metadata.records.operations import scan_operations


async def close_branches(
    store: IMetadataStore, ledgers: ILedgerStore, request: End, options: CoordinatorOptions
) -> None:
    """
    Exclude that anything is added to the branches of a commit; the caller then commits, or finds it ended.

    :raises TransactionConflict: an empty ledger is open for a branch; or see ``require_separate_end``.
    :raises NotTransactionOwner: the transaction belongs to another principal; nothing was changed.
    """
    if not await _admit_nothing_more(store, request, options.attempts_max):
        return
    open_for: defaultdict[str, set[int]] = defaultdict(set)
    for operation in await scan_operations(store, request.txn_id, options.page_records):
        document = operation.document
        if isinstance(document, WriteOperation) and document.branch in request.branches:
            open_for[document.segment].add(document.ledger)
    for segment, ledger_ids in sorted(open_for.items()):
        try:
            ledger = await ledgers.open(segment)
        except LedgerNotFound:
            continue  # it was deleted, and takes nothing more
        try:
            await _close(ledger, ledger_ids, request.txn_id, options.attempts_max)
        finally:
            await ledger.close()


async def _admit_nothing_more(store: IMetadataStore, request: End, attempts_max: int) -> bool:
    """Write the branches into the open header; return False if the transaction has ended or is unknown."""
    for _ in range(attempts_max):
        header = await read_header(store, request.txn_id)
        if header is None or header.transaction.state is not State.OPEN:
            return False
        if not request.operator:
            require_owner(header, request.principal)
        require_separate_end(header, request)
        if header.closes:
            return True
        document = msgspec.structs.replace(header.document, branches=sorted(request.branches))
        try:
            await store.put(Put(header.key, encode(document), header.version, header_indexes(request.txn_id, document)))
        except (VersionMismatch, OutcomeUnknown):
            continue  # the header shows what happened
        return True
    raise Unavailable(f"the header of transaction {request.txn_id} changes too often")


async def _close(ledger: IManagedLedger, ledger_ids: set[int], txn_id: TxnID, attempts_max: int) -> None:
    """Close the open ledger if it is one of these."""
    for _ in range(attempts_max):
        tail = await ledger.tail()
        if tail.sealed or tail.open_ledger_id not in ledger_ids:
            return
        try:
            rolled = await ledger.roll()
        except OutcomeUnknown:
            continue  # the tail shows what happened
        if rolled.open_ledger_id == tail.open_ledger_id and not rolled.sealed:
            raise TransactionConflict(
                txn_id,
                f"a send to {ledger.name} may be under way, and none is stored; abort it, or let its owner end it",
            )
    raise Unavailable(f"the open ledger of {ledger.name} could not be closed")
