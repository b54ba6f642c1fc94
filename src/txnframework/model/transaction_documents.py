"""The documents of transactions: headers, operations, abort records, and applications; see ``records``."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from txnframework.model.document import ACK_FORMAT, Document, Natural
from txnframework.model.ids import TxnText
from txnframework.model.positions import PositionText

TransactionState = Annotated[str, msgspec.Meta(pattern=r"\A(OPEN|COMMITTED|ABORTED)\Z")]


class TransactionHeader(Document):
    """
    A transaction.

    ``state``: OPEN, COMMITTED or ABORTED. ``branches``: those that count; in an OPEN one, a commit with these
    branches has begun by its id, and no operation may be added. ``co_commit``: only the application's database
    transaction may commit it; absent from all other headers, and ``format`` 3 goes with it.
    """

    state: TransactionState
    timeout_ms: Natural
    created_ms: Natural
    finalized_ms: Natural | None = None
    principal: str = ""
    session: str | None = None
    branches: list[Natural] | None = None
    co_commit: Literal[True] | msgspec.UnsetType = msgspec.UNSET


class SourceRangeDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a batch consumed of one subscription: positions by segment."""

    topic: str
    subscription: str
    start: dict[str, PositionText]
    end: dict[str, PositionText]


class ProcessedRangeDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a batch consumed of one segment."""

    query: str
    batch: Natural
    start: PositionText
    end: PositionText
    epoch: Natural


class AckDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One acknowledged position; ``indexes`` None: the whole entry."""

    position: PositionText
    size: Annotated[int, msgspec.Meta(ge=1)] = 1
    indexes: list[Natural] | None = None


class Operation(Document, tag_field="kind"):
    """What one branch of a transaction did; base class of the three kinds."""

    branch: Natural


class WriteOperation(Operation, tag="write"):
    """
    ``branch`` may append to ``ledger`` of ``segment``; ``after``: the last confirmed position read before this write.
    """

    segment: str
    ledger: Natural
    after: PositionText


class AckOperation(Operation, tag="ack", kw_only=True):
    """
    ``branch`` acknowledges ``acks`` for ``subscription`` of ``segment``.

    ``processed``: the batch, with a pipeline's cumulative ack.
    """

    segment: str
    subscription: str
    incarnation: Natural
    acks: list[AckDocument]
    cumulative: bool = False
    processed: ProcessedRangeDocument | None = None
    format: int = ACK_FORMAT


class ApplicationOperation(Operation, tag="app"):
    """
    The transaction carries batch ``version`` of ``query``. ``ranges``: the ranges that the batch consumed, recorded
    with the commit.
    """

    application: str
    run: str
    query: str
    version: Annotated[int, msgspec.Meta(ge=-1)]
    ranges: list[SourceRangeDocument] | None = None


AnyOperation = WriteOperation | AckOperation | ApplicationOperation


class AbortRecord(Document):
    """The branch's entries in the ledger that the key names are aborted; all of them are after ``after``."""

    after: PositionText


class TrimmedRecord(Document):
    """
    Every ledger of the segment below ``ledger`` was trimmed by ``at_ms``; its abort records are kept from that time on.

    ``collected``: the abort records of ledgers below this one are deleted. If these ledgers return from a backup, an
    entry without a record is not a committed one. ``ledger`` 0: no abort records wait for deletion.
    """

    ledger: Natural
    at_ms: Natural
    collected: Natural = 0


class CommittedBatchDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A committed batch."""

    query: str
    version: Annotated[int, msgspec.Meta(ge=-1)]
    ranges: list[SourceRangeDocument] = msgspec.field(default_factory=list)


class ApplicationRecord(Document):
    """
    An application: its current run, its past runs, the batch that was begun last, and those that were committed last.
    """

    run: str
    past_runs: list[str] = msgspec.field(default_factory=list)
    query: str = ""
    version: Annotated[int, msgspec.Meta(ge=-1)] = -1
    txn: TxnText | None = None
    committed: list[CommittedBatchDocument] = msgspec.field(default_factory=list)
