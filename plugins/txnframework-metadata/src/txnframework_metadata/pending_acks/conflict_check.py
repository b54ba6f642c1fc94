"""The check after acknowledgments were written: other records first, then their headers, the cursor last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from txnframework.interfaces import ICursor, IMetadataStore
from txnframework.model.ack_overlap import AckContext, AckIndex, Verdict, judge_all, share_messages
from txnframework.model.acks import Ack, AckRequest
from txnframework.model.ids import TxnID
from txnframework.model.records import AckOperation
from txnframework.model.transactions import State
from txnframework_metadata.pending_acks.records import AckRecords, ConfirmedAcks
from txnframework_metadata.records.headers import read_header
from txnframework_metadata.records.views import StoredOperation


@dataclass(frozen=True, slots=True)
class CheckSources:
    """
    What the check reads: the headers, the subscription's records, those confirmed in this process, and the cursor.
    """

    headers: IMetadataStore
    records: AckRecords
    confirmed: ConfirmedAcks
    cursor: ICursor


async def check_conflicts(
    sources: CheckSources, requests: Sequence[AckRequest], stored: Sequence[StoredOperation]
) -> tuple[list[Verdict], list[StoredOperation]]:
    """
    Judge requests of one branch whose records are stored: read other operations, their headers, and the cursor last.

    An operation whose header is gone was settled, and the cursor, which is read later, shows its effect. A transaction
    that shares no message with the requests decides nothing, so its header is not read. The second result is the
    branch's earlier records of which no part is known to be confirmed; see ``replaced``.
    """
    branch, incarnation = requests[0].branch, requests[0].incarnation
    sources.records.remember(stored)
    just_put = {operation.record.key.path for operation in stored}
    earlier: list[StoredOperation] = []
    own: list[AckIndex] = []
    unsure: list[AckIndex] = []
    pending: list[tuple[TxnID, AckIndex]] = []
    committed: list[Ack] = []
    for txn_id, operations in (await sources.records.by_txn()).items():
        same = txn_id == branch.txn_id
        if not same and not any(_may_decide(requests, operation) for operation in operations):
            continue
        header = None if same else await read_header(sources.headers, txn_id)
        for operation in operations:
            document = operation.document
            if not isinstance(document, AckOperation) or document.incarnation != incarnation:
                continue
            if same:
                if document.branch != branch.number:
                    continue
                confirmed = sources.confirmed.of(operation)
                own += [] if confirmed is None else [confirmed]
                put_now = operation.record.key.path in just_put
                if not put_now and sources.confirmed.in_doubt(operation):
                    unsure.append(operation.acks_by_entry)
                    earlier += [operation] if confirmed is None else []
            elif header is not None and header.transaction.state is State.OPEN:
                pending.append((txn_id, operation.acks_by_entry))
            elif header is not None and header.transaction.counts(document.branch):
                committed += operation.acks
    cursor = await sources.cursor.load()
    if cursor.incarnation != incarnation:
        moved = Verdict("the subscription was moved or made again since the messages were received")
        return [moved] * len(requests), []
    ranges = requests[0].processed is not None
    around = AckContext(tuple(own), tuple(unsure), tuple(pending), tuple(committed), cursor, ranges)
    return judge_all(requests, around), earlier


def _may_decide(requests: Sequence[AckRequest], operation: StoredOperation) -> bool:
    """Return whether the verdicts may depend on an operation of another transaction; pure."""
    return any(share_messages(request.acks + request.received, operation.acks_by_entry) for request in requests)


def replaced(earlier: Sequence[StoredOperation], standing: Sequence[StoredOperation]) -> list[StoredOperation]:
    """
    Return the earlier records that are not needed, because a confirmed one with a higher key has the same content.

    ``standing`` are the records after conflicting parts were withdrawn. An earlier record may hold such a part too, and
    may have been confirmed. The order by key ensures that of two processes that see each other's records only one
    removes the other's.
    """
    return [
        operation
        for operation in earlier
        if any(
            put.document == operation.document and put.record.key.path > operation.record.key.path for put in standing
        )
    ]
