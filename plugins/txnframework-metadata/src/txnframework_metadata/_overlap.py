"""Whether an acknowledgment may be made, by what others acknowledged and by the cursor; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from txnframework.model.acks import Ack, AckState
from txnframework.model.cursor import Cursor, state_of, unite
from txnframework.model.ids import TxnID
from txnframework.model.positions import Position


@dataclass(frozen=True, slots=True)
class Surroundings:
    """
    What stands beside a request, all of the request's incarnation.

    ``own``: confirmed acknowledgments of the same transaction and branch. ``unsure``: recorded ones of it that may
    never have been confirmed. ``pending``: those of other transactions that are open, admitted or not. ``committed``:
    those of others that count and have not reached the cursor.
    """

    own: tuple[Ack, ...]
    unsure: tuple[Ack, ...]
    pending: tuple[tuple[TxnID, Ack], ...]
    committed: tuple[Ack, ...]
    cursor: Cursor


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    ``conflict``: why it may not be, and because of which transaction. ``repeated``: it stands already, confirmed.
    ``unsure``: with a conflict, some of it may have been recorded before.
    """

    conflict: str = ""
    other: TxnID | None = None
    repeated: bool = False
    unsure: bool = False


def judge(acks: Sequence[Ack], around: Surroundings) -> Verdict:
    """
    Return whether ``acks`` may be acknowledged.

    Only what was confirmed may be repeated without another look: a record whose caller was never told may stand beside
    a confirmed one of another transaction.
    """
    lower = next((ack for ack in acks if _is_below_own(ack, (*around.own, *around.unsure))), None)
    if lower is not None:
        return Verdict(f"a cumulative acknowledgment at {lower.position} is behind an earlier one of this transaction")
    new = [ack for ack in acks if not _is_repeated(ack, around.own)]
    if not new:
        return Verdict(repeated=True)
    unsure = any(overlap(ack, held) for ack in new for held in around.unsure)
    deleted = unite(around.cursor, around.committed)
    for ack in new:
        if _is_deleted(ack, deleted):
            return Verdict(f"{ack.position} is acknowledged already", unsure=unsure)
        for txn_id, held in around.pending:
            if overlap(ack, held):
                return Verdict(f"{ack.position} is acknowledged in {txn_id}, which is open", txn_id, unsure=unsure)
    return Verdict()


def overlap(one: Ack, other: Ack) -> bool:
    """Whether two transactions cannot both hold these: a message in both, or two cumulative ones."""
    if one.cumulative and other.cumulative:
        return True
    if one.cumulative or other.cumulative:
        cumulative, single = (one, other) if one.cumulative else (other, one)
        return _reaches(cumulative, single)
    if one.position.entry != other.position.entry:
        return False
    mine, theirs = _indexes(one), _indexes(other)
    return mine is None or theirs is None or bool(mine & theirs)


def _indexes(ack: Ack) -> frozenset[int] | None:
    """The indexes that an individual ack names, None for the whole entry."""
    indexes = ack.batch_indexes
    if indexes is None and ack.position.batch_index >= 0:
        indexes = frozenset({ack.position.batch_index})
    return None if indexes is None or len(indexes) >= ack.batch_size else indexes


def _up_to(ack: Ack) -> frozenset[int] | None:
    """The indexes of its own entry that a cumulative ack reaches, None for all."""
    index = ack.position.batch_index
    return None if index < 0 or index >= ack.batch_size - 1 else frozenset(range(index + 1))


def _place(ack: Ack) -> tuple[Position, int]:
    """Where a cumulative ack stands, comparable with others."""
    reached = _up_to(ack)
    return ack.position.entry, ack.batch_size if reached is None else len(reached)


def _reaches(cumulative: Ack, single: Ack) -> bool:
    """Whether a cumulative ack includes a message that ``single`` names."""
    entry = single.position.entry
    if entry != cumulative.position.entry:
        return entry < cumulative.position
    reached, indexes = _up_to(cumulative), _indexes(single)
    return reached is None or indexes is None or bool(reached & indexes)


def _is_below_own(ack: Ack, own: Iterable[Ack]) -> bool:
    """Whether a cumulative ack would move back."""
    return ack.cumulative and any(held.cumulative and _place(ack) < _place(held) for held in own)


def _is_repeated(ack: Ack, own: Sequence[Ack]) -> bool:
    """Whether the same branch acknowledged all of this before."""
    if ack.cumulative:
        return any(held.cumulative and _place(held) == _place(ack) for held in own)
    wanted = _indexes(ack)
    missing = set(range(ack.batch_size)) if wanted is None else set(wanted)
    for held in own:
        if held.cumulative:
            if held.position.entry > ack.position.entry:
                return True
            if held.position.entry == ack.position.entry:
                reached = _up_to(held)
                missing -= missing if reached is None else reached
        elif held.position.entry == ack.position.entry:
            indexes = _indexes(held)
            missing -= missing if indexes is None else indexes
    return not missing


def _is_deleted(ack: Ack, cursor: Cursor) -> bool:
    """Whether the cursor has passed: any message of an individual ack, all that a cumulative one would add."""
    if ack.cumulative:
        return ack.position.entry <= cursor.mark_delete or unite(cursor, (ack,)) == cursor
    if state_of(cursor, ack.position.entry) is AckState.DELETED:
        return True
    done, indexes = cursor.partial.get(ack.position.entry, frozenset()), _indexes(ack)
    return bool(done) if indexes is None else bool(done & indexes)
