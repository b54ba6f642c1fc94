"""Transactions that are one step of a database, which has their entries, their headers and the cursors."""

from __future__ import annotations

import msgspec

from txnframework.model.cursor import CursorMove
from txnframework.model.ids import TxnID
from txnframework.model.metadata import IndexRange, Record
from txnframework.model.positions import Position
from txnframework.model.steps import LedgerAppend


class JointAck(msgspec.Struct, frozen=True, gc=False):
    """
    Acknowledgments of one subscription on one segment, as a part of the step; see ``IPendingAckStore``.

    ``move``: the planned move of the cursor. ``vacant``: where no acknowledgment of another transaction may be stored.
    """

    move: CursorMove
    vacant: tuple[IndexRange, ...]


class JointTransaction(msgspec.Struct, frozen=True, gc=False):
    """
    A transaction of the step.

    ``txn_id``: from ``IJointCoordinator.reserve_id``; used again only after a refusal. ``principal``: that of the
    transaction.
    """

    txn_id: TxnID
    principal: str


class JointCommit(msgspec.Struct, frozen=True, gc=False):
    """
    Transactions that begin and commit in one step.

    ``transactions``: at least one. ``appends``: their entries, each with branch 0 of one of them and without sequences;
    at most one item for each ledger. ``acks``: at most one for each subscription on a segment. One of ``appends`` and
    ``acks`` may be empty.
    """

    transactions: tuple[JointTransaction, ...]
    appends: tuple[LedgerAppend, ...]
    acks: tuple[JointAck, ...] = ()


class JointCommitted(msgspec.Struct, frozen=True, gc=False):
    """
    What committed transactions have written, in the order of the request.

    ``positions``: those of the entries of each ledger. ``cursors``: the records that the moves of the cursors wrote.
    Both are None if the reply of the step was lost, and the header showed that it was applied.
    """

    positions: tuple[tuple[Position, ...], ...] | None
    cursors: tuple[Record, ...] | None
