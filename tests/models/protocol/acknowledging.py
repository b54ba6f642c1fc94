"""
Acknowledgments are put, then others' are looked for; what a branch acknowledges later goes into the record that it has
(``writer``, ``conflict_check`` and ``store`` in ``txnframework_metadata.pending_acks`` follow this).

Who takes part: *two transactions*, each with one process that acknowledges two messages of one subscription in turn,
the first a then b, the second b then a. The transactions may be committed or aborted any time, by another process, also
while an acknowledgment is under way. Each transaction has one record, that grows with the second message, and one
*settler*, that reads the record, then the header, then the record again, moves the cursor, and deletes the record. So
has a process that opens the subscription, which settles what it finds ended.

The rule: a message that is *confirmed* to a transaction takes effect if that commits, one that is *refused* never does,
and no message is confirmed in two transactions that commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from exploring import Explored, explore

LOST = "a confirmed acknowledgment is lost"
TOOK_EFFECT = "a refused acknowledgment took effect"
TWICE = "a message is acknowledged by two committed transactions"
LEAKED = "an acknowledgment of an aborted transaction took effect"


class Rule(StrEnum):
    """What makes one acknowledgment of a message count, and no other."""

    PUT_THEN_LOOK = "what is acknowledged is put before others' records are looked at"
    CURSOR_LAST = "the cursor is looked at after the records, which go once it has moved"
    COMMITTED_COUNT = "records of committed transactions, that are not settled yet, are an overlap as well"
    TAKEN_BACK_WHILE_OPEN = "a part is taken back only on the condition that the header is still open"
    SETTLED_BY_A_SECOND_LOOK = "settling reads the record after it saw that the transaction has ended"


HARM = {
    Rule.PUT_THEN_LOOK: TWICE,
    Rule.CURSOR_LAST: TWICE,
    Rule.COMMITTED_COUNT: TWICE,
    Rule.TAKEN_BACK_WHILE_OPEN: TOOK_EFFECT,
    Rule.SETTLED_BY_A_SECOND_LOOK: TOOK_EFFECT,
}
STATES_MIN = 30_000

Messages = frozenset[str]
NONE: Messages = frozenset()
TURNS = (("a", "b"), ("b", "a"))
"""The order in which each process acknowledges."""


class Header(StrEnum):
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Step(StrEnum):
    """The steps of an acknowledgment."""

    PUT = "puts"
    RECORDS = "looks at the other's record"
    CURSOR = "looks at the cursor"


ORDER = (Step.PUT, Step.RECORDS, Step.CURSOR)
ORDER_WITHOUT = {
    Rule.PUT_THEN_LOOK: (Step.RECORDS, Step.CURSOR, Step.PUT),
    Rule.CURSOR_LAST: (Step.PUT, Step.CURSOR, Step.RECORDS),
}


class Settling(StrEnum):
    """What a settler does next."""

    NOTHING = "nothing"
    READ_HEADER = "reads the header"
    APPLY = "moves the cursor"
    FORGET = "deletes the record"


class Transaction(NamedTuple):
    """
    One transaction, its process and its settler.

    ``record``: what stands in it, None if it is not there. ``before``: what stood before the part that is being put.
    ``step``: how many steps of the acknowledgment under way are done. ``overlaps``: what its look found so far.
    ``applied``: what it put on the cursor. ``read``: the settler's copy of the record, and of its version.
    """

    header: Header = Header.OPEN
    record: Messages | None = None
    version: int = 0
    before: Messages | None = None
    turn: int = 0
    step: int = 0
    overlaps: bool = False
    confirmed: Messages = NONE
    refused: Messages = NONE
    applied: Messages = NONE
    settling: Settling = Settling.NOTHING
    read: tuple[Messages, int] | None = None


State = tuple[Transaction, Transaction]
Moved = tuple[str, Transaction]


class Model:
    """The steps, with one of the rules left out, or none."""

    def __init__(self, without: Rule | None) -> None:
        self._without = without
        self._order = ORDER if without is None else ORDER_WITHOUT.get(without, ORDER)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        first, second = state
        for label, moved in self._all_of(0, first, second):
            yield label, (moved, second)
        for label, moved in self._all_of(1, second, first):
            yield label, (first, moved)

    def _all_of(self, number: int, mine: Transaction, other: Transaction) -> Iterator[Moved]:
        name = f"t{number + 1}"
        if mine.turn < len(TURNS[number]):
            yield from self._acknowledging(name, TURNS[number][mine.turn], mine, other)
        if mine.header is Header.OPEN:
            yield f"{name} is committed", mine._replace(header=Header.COMMITTED)
            yield f"{name} is aborted", mine._replace(header=Header.ABORTED)
        yield from self._settling(name, mine)

    def _acknowledging(self, name: str, message: str, mine: Transaction, other: Transaction) -> Iterator[Moved]:
        if mine.step == len(self._order):
            yield from self._answer(name, message, mine)
            return
        step = self._order[mine.step]
        done = mine._replace(step=mine.step + 1)
        if step is Step.RECORDS:
            counts = (Header.OPEN,) if self._without is Rule.COMMITTED_COUNT else (Header.OPEN, Header.COMMITTED)
            overlaps = other.record is not None and message in other.record and other.header in counts
        elif step is Step.CURSOR:
            overlaps = message in mine.applied | other.applied
        elif mine.overlaps:  # seen before it was put
            yield f"{name} refuses {message}", _answered(mine._replace(refused=mine.refused | {message}))
            return
        elif mine.header is not Header.OPEN:
            yield f"{name} refuses {message}: it has ended", _answered(mine._replace(refused=mine.refused | {message}))
            return
        else:
            record = (mine.record or NONE) | {message}
            yield (
                f"{name} puts {message}, and has {_listed(record)}",
                done._replace(record=record, version=mine.version + 1, before=mine.record),
            )
            return
        finds = "finds" if overlaps else "does not find"
        yield f"{name} {step}, and {finds} {message}", done._replace(overlaps=mine.overlaps or overlaps)

    def _answer(self, name: str, message: str, mine: Transaction) -> Iterator[Moved]:
        refused = mine._replace(refused=mine.refused | {message})
        if not mine.overlaps:
            yield f"{name} confirms {message}", _answered(mine._replace(confirmed=mine.confirmed | {message}))
        elif mine.header is not Header.OPEN and self._without is not Rule.TAKEN_BACK_WHILE_OPEN:
            # Aborted, it has no effect; committed, its effect is not known any more: the answer is an unknown outcome.
            yield f"{name} cannot take {message} back", _answered(mine if mine.header is Header.COMMITTED else refused)
        elif mine.record is None:
            yield f"{name} finds that {message} is gone", _answered(refused)
        else:
            back = refused._replace(record=mine.before, version=mine.version + 1)
            yield f"{name} takes {message} back", _answered(back)

    def _settling(self, name: str, mine: Transaction) -> Iterator[Moved]:
        read = None if mine.record is None else (mine.record, mine.version)
        if mine.settling is Settling.NOTHING and read is not None:
            found = mine._replace(settling=Settling.READ_HEADER, read=read)
            yield f"the settler of {name} finds {_listed(read[0])}", found
        elif mine.settling is Settling.READ_HEADER:
            if self._without is Rule.SETTLED_BY_A_SECOND_LOOK:
                read = mine.read
            if mine.header is Header.OPEN or read is None:
                yield f"the settler of {name} leaves it", mine._replace(settling=Settling.NOTHING, read=None)
            else:
                following = Settling.APPLY if mine.header is Header.COMMITTED else Settling.FORGET
                text = f"the settler finds {name} {mine.header}, with {_listed(read[0])}"
                yield text, mine._replace(settling=following, read=read)
        elif mine.read is not None:
            acks, version = mine.read
            if mine.settling is Settling.APPLY:
                moved = mine._replace(settling=Settling.FORGET, applied=mine.applied | acks)
                yield f"the settler of {name} moves the cursor by {_listed(acks)}", moved
            else:
                left = None if mine.version == version else mine.record
                done = mine._replace(settling=Settling.NOTHING, read=None, record=left)
                yield f"the settler of {name} deletes what it read", done


def _answered(transaction: Transaction) -> Transaction:
    return transaction._replace(turn=transaction.turn + 1, step=0, overlaps=False, before=None)


def _listed(messages: Messages) -> str:
    return " and ".join(sorted(messages)) or "nothing"


def wrong(state: State) -> str | None:
    for one in state:
        settled = one.record is None and one.settling is Settling.NOTHING
        if one.refused & one.applied:
            return TOOK_EFFECT
        if one.header is Header.COMMITTED and settled and one.confirmed - one.applied:
            return LOST
        if one.header is Header.ABORTED and one.applied:
            return LEAKED
    first, second = state
    both = first.header is second.header is Header.COMMITTED
    return TWICE if both and first.confirmed & second.confirmed else None


def explored(without: Rule | None = None) -> Explored:
    return explore((Transaction(), Transaction()), Model(without).steps, wrong)
