"""The decision whether an acknowledgment may be made, based on other acknowledgments and the cursor; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from txnframework.model.acks import Ack, AckRequest, AckState
from txnframework.model.cursor import Cursor, state_of, unite
from txnframework.model.ids import TxnID
from txnframework.model.partial_entries import bits_of
from txnframework.model.positions import Position


class AckIndex:
    """Acknowledgments by entry: a lookup costs the same for any number of them."""

    def __init__(self, acks: Iterable[Ack]) -> None:
        self.cumulative: list[Ack] = []
        self._single: dict[Position, list[Ack]] = {}
        for ack in acks:
            if ack.cumulative:
                self.cumulative.append(ack)
            else:
                self._single.setdefault(ack.position.entry, []).append(ack)

    def near(self, ack: Ack) -> Iterator[Ack]:
        """Return the acknowledgments that may have a message in common with ``ack``."""
        yield from self.cumulative
        if not ack.cumulative:
            yield from self.naming(ack.position.entry)
            return
        for some in self._single.values():
            yield from some

    def naming(self, entry: Position) -> Sequence[Ack]:
        """Return the individual acknowledgments of messages of an entry."""
        return self._single.get(entry, ())


@dataclass(frozen=True, slots=True)
class AckContext:
    """
    The context of a request; everything is of the request's incarnation.

    ``own``: confirmed acknowledgments of the same transaction and branch. ``unsure``: recorded ones of that branch that
    may never have been confirmed. ``pending``: those of other open transactions. ``committed``: those
    of other transactions that count and have not reached the cursor. ``ranges``: the request ends ranges that a
    pipeline consumed, of which some messages may have been acknowledged one by one before.
    """

    own: tuple[AckIndex, ...]
    unsure: tuple[AckIndex, ...]
    pending: tuple[tuple[TxnID, AckIndex], ...]
    committed: tuple[Ack, ...]
    cursor: Cursor
    ranges: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    The decision about a request.

    ``conflict``: why the request is refused; ``other``: the transaction that causes it. ``repeated``: the acks are
    already recorded and confirmed. ``unsure``: with a conflict, some of the acks may have been recorded before.
    """

    conflict: str = ""
    other: TxnID | None = None
    repeated: bool = False
    unsure: bool = False


def judge(acks: Sequence[Ack], context: AckContext, received: Sequence[Ack] = ()) -> Verdict:
    """
    Return whether ``acks`` may be acknowledged. ``received``: the messages that the cumulative acks cover (see
    ``AckRequest``).

    Only confirmed acks may be repeated without another check: an unconfirmed record may exist beside a confirmed one of
    another transaction. A message that a cumulative ack of the same branch covers needs no record of its own. But it is
    checked, because the cumulative ack may have skipped it as already acknowledged.
    """
    furthest = [held for index in (*context.own, *context.unsure) for held in index.cumulative]
    lower = next((ack for ack in acks if ack.cumulative and _is_below(ack, furthest)), None)
    if lower is not None:
        return Verdict(f"a cumulative acknowledgment at {lower.position} is behind an earlier one of this transaction")
    new: list[Ack] = []
    covered: list[Ack] = []
    for ack in acks:
        if not _is_repeated(ack, context.own):
            new.append(ack)
        elif not ack.cumulative:
            covered += _not_named(ack, context.own)
    if not new and not covered:
        return Verdict(repeated=True)
    unsure = any(overlap(ack, held) for ack in new for index in context.unsure for held in index.near(ack))
    deleted = unite(context.cursor, context.committed) if context.committed else context.cursor
    stood_for = received if any(ack.cumulative for ack in new) else ()
    for ack in (*new, *covered, *stood_for):
        if _is_deleted(ack, deleted, context.ranges):
            return Verdict(f"{ack.position} is acknowledged already", unsure=unsure)
    if not new:
        return Verdict(repeated=True)
    for ack in new:
        for txn_id, index in context.pending:
            if any(overlap(ack, held) for held in index.near(ack)):
                return Verdict(f"{ack.position} is acknowledged in {txn_id}, which is open", txn_id, unsure=unsure)
    return Verdict()


def judge_all(requests: Iterable[AckRequest], context: AckContext) -> list[Verdict]:
    """
    Return the verdict of each request of one branch; accepted requests count as the branch's own for the later ones.
    """
    verdicts: list[Verdict] = []
    own: list[Ack] = []
    for request in requests:
        before = replace(context, own=(*context.own, AckIndex(own))) if own else context
        verdict = judge(request.acks, before, request.received)
        verdicts.append(verdict)
        if not verdict.conflict:
            own += request.acks
    return verdicts


def joined(acks: Iterable[Ack]) -> list[Ack]:
    """
    Return acknowledgments of one kind as a record holds them: one for each entry, and the furthest cumulative one.

    Their combined effect stays the same.
    """
    found: dict[Position, Ack] = {}
    furthest: list[Ack] = []
    for ack in acks:
        entry = ack.position.entry
        if ack.cumulative:
            furthest = [ack if not furthest else max(furthest[0], ack, key=_place)]
        elif entry in found:
            found[entry] = _both(found[entry], ack)
        else:
            found[entry] = ack
    return [*found.values(), *furthest]


def _both(one: Ack, other: Ack) -> Ack:
    """Return the acknowledgment of all messages that two acks of one entry name."""
    mine, theirs = _indexes(one), _indexes(other)
    if mine is None or theirs is None:
        return one if mine is None else other
    return Ack(one.position.entry, one.batch_size, mine | theirs)


def overlap(one: Ack, other: Ack) -> bool:
    """Return whether two transactions cannot both hold these acks: they share a message, or both are cumulative."""
    if one.cumulative and other.cumulative:
        return True
    if one.cumulative or other.cumulative:
        cumulative, single = (one, other) if one.cumulative else (other, one)
        return _reaches(cumulative, single)
    if one.position.entry != other.position.entry:
        return False
    mine, theirs = _indexes(one), _indexes(other)
    return mine is None or theirs is None or bool(mine & theirs)


def share_messages(acks: Iterable[Ack], held: AckIndex) -> bool:
    """
    Return whether an acknowledgment may have a message in common with one of ``acks``.

    If not, no verdict about ``acks`` depends on it, whatever became of its transaction. A cumulative acknowledgment may
    have messages in common with any other.
    """
    return any(
        ack.cumulative or bool(held.cumulative) or any(overlap(ack, other) for other in held.near(ack)) for ack in acks
    )


def _indexes(ack: Ack) -> frozenset[int] | None:
    """Return the indexes that an individual ack names; None: the whole entry."""
    indexes = ack.batch_indexes
    if indexes is None and ack.position.batch_index >= 0:
        indexes = frozenset({ack.position.batch_index})
    return None if indexes is None or len(indexes) >= ack.batch_size else indexes


def _up_to(ack: Ack) -> frozenset[int] | None:
    """Return the indexes of its own entry that a cumulative ack covers; None: all."""
    index = ack.position.batch_index
    return None if index < 0 or index >= ack.batch_size - 1 else frozenset(range(index + 1))


def _last_index(ack: Ack) -> int:
    """Return the index of the message that a cumulative ack names."""
    return ack.batch_size - 1 if ack.position.batch_index < 0 else ack.position.batch_index


def _place(ack: Ack) -> tuple[Position, int]:
    """Return the position of a cumulative ack in a form that can be compared with others."""
    reached = _up_to(ack)
    return ack.position.entry, ack.batch_size if reached is None else len(reached)


def _reaches(cumulative: Ack, single: Ack) -> bool:
    """Return whether a cumulative ack covers a message that ``single`` names."""
    entry = single.position.entry
    if entry != cumulative.position.entry:
        return entry < cumulative.position
    reached, indexes = _up_to(cumulative), _indexes(single)
    return reached is None or indexes is None or bool(reached & indexes)


def _is_below(ack: Ack, cumulative: Iterable[Ack]) -> bool:
    """Return whether a cumulative ack would move back."""
    return any(_place(ack) < _place(held) for held in cumulative)


def _is_repeated(ack: Ack, own: Sequence[AckIndex]) -> bool:
    """Return whether the same branch has acknowledged all of this before."""
    if ack.cumulative:
        return any(_place(held) == _place(ack) for index in own for held in index.cumulative)
    wanted = _indexes(ack)
    missing = set(range(ack.batch_size)) if wanted is None else set(wanted)
    for held in (held for index in own for held in index.near(ack)):
        if held.cumulative:
            if held.position.entry > ack.position.entry:
                return True
            if held.position.entry == ack.position.entry:
                reached = _up_to(held)
                missing -= missing if reached is None else reached
        else:
            indexes = _indexes(held)
            missing -= missing if indexes is None else indexes
    return not missing


def _not_named(ack: Ack, own: Sequence[AckIndex]) -> tuple[Ack, ...]:
    """Return the part of an individual ack that the same branch has not acknowledged individually."""
    wanted = _indexes(ack)
    missing = set(range(ack.batch_size)) if wanted is None else set(wanted)
    entry = ack.position.entry
    for held in (held for index in own for held in index.naming(entry)):
        indexes = _indexes(held)
        missing -= missing if indexes is None else indexes
    return (Ack(entry, ack.batch_size, frozenset(missing)),) if missing else ()


def _is_deleted(ack: Ack, cursor: Cursor, ranges: bool) -> bool:
    """
    Return whether the cursor has passed any message of an individual ack, or all that a cumulative ack would add.

    A cumulative ack must not name an acknowledged message either: its consumer received the message, and another
    consumer did, too. A cumulative ack of a whole entry names the last message of the batch.
    """
    if ack.cumulative:
        last = Position(ack.position.ledger_id, ack.position.entry_id, _last_index(ack))
        named = not ranges and state_of(cursor, last) is AckState.DELETED
        return named or ack.position.entry <= cursor.mark_delete or unite(cursor, (ack,)) == cursor
    if state_of(cursor, ack.position.entry) is AckState.DELETED:
        return True
    done, indexes = cursor.partial.bits(ack.position.entry), _indexes(ack)
    return bool(done if indexes is None else done & bits_of(indexes))
