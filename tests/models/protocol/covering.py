"""What a cumulative acknowledgment in a transaction stands for: what its consumer was given and has not acknowledged
yet (``txnframework.broker.dispatch.claims`` and ``judge`` in ``txnframework.model.ack_overlap`` follow this).

Who takes part: three messages, of which the first two are one batch, and two *holders* of the subscription's lease.
``a`` has the lease first, and two transactions, one after the other; ``b`` takes over at any moment, and has one. ``a``
goes on with what it was given, as a process does that was paused, and *notices* later that its lease was lost; then it
may get it back, and its application knows nothing of all that. Each acknowledges any message it was given, individually
or cumulatively, twice in a transaction; a transaction may be aborted at any moment, by its timeout. What a committed
transaction acknowledged is done at once: that this is so before the cursor has it, the model ``acknowledging`` shows.

The application processes in a transaction each message that it acknowledges by name, and with a cumulative
acknowledgment everything before it that it was given and that none of its own committed transactions acknowledged.

The rule: no message is processed in two committed transactions. And no acknowledgment is refused unless another holder
has a part in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from exploring import Explored, explore

TWICE = "a message is processed in two committed transactions"
NEEDLESS = "a cumulative acknowledgment is refused, though nobody else has a part in what it stands for"


class Rule(StrEnum):
    """What a cumulative acknowledgment stands for, and when that is looked at."""

    GIVEN_IS_CHECKED = "what was given, and is covered, must not be done"
    AFTER_THE_PUT = "what was given is checked after the acknowledgment was put"
    LOST_WITH_THE_LEASE = "what was given under a lease that was lost is not acknowledged cumulatively"
    NOT_GIVEN_AGAIN = "what was given under a lease that was lost, and was not given again since, is not passed over"
    LAST_OF_BATCH = "the last message of a batch that is named is a message, and not the entry"
    NAMED_UNDER_OWN = "a message that is named is looked at, though an own cumulative acknowledgment covers it"
    OWN_ONCE_COMMITTED = "what it acknowledged itself is passed over only if that transaction was committed"
    OWN_PASSED_OVER = "what it acknowledged itself, in a transaction that was committed, is passed over"
    NEVER_GIVEN_PASSED_OVER = "what was done before it could be given is passed over"


HARM = {
    Rule.GIVEN_IS_CHECKED: TWICE,
    Rule.AFTER_THE_PUT: TWICE,
    Rule.LOST_WITH_THE_LEASE: TWICE,
    Rule.NOT_GIVEN_AGAIN: TWICE,
    Rule.LAST_OF_BATCH: TWICE,
    Rule.NAMED_UNDER_OWN: TWICE,
    Rule.OWN_ONCE_COMMITTED: TWICE,
    Rule.OWN_PASSED_OVER: NEEDLESS,
    Rule.NEVER_GIVEN_PASSED_OVER: NEEDLESS,
}
STATES_MIN = 100_000

Messages = frozenset[int]
NONE: Messages = frozenset()
ALL: Messages = frozenset({0, 1, 2})
BATCH: Messages = frozenset({0, 1})
ACKS_MAX = {"a": (1, 2), "b": (1,)}
"""How many acknowledgments each transaction of a holder has at most."""


class Header(StrEnum):
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Ack(NamedTuple):
    """One message, or with ``cumulative`` everything up to it."""

    message: int
    cumulative: bool

    @property
    def covers(self) -> Messages:
        return frozenset(range(self.message + 1)) if self.cumulative else frozenset({self.message})

    def __str__(self) -> str:
        return f"everything up to {self.message}" if self.cumulative else f"{self.message}"


class UnderWay(NamedTuple):
    """An unanswered acknowledgment; ``claimed``: the messages that the holder knows it to cover."""

    ack: Ack
    claimed: Messages
    was_put: bool = False


class Transaction(NamedTuple):
    """``record``: what was put and not withdrawn. ``processed``: what the application made of what was confirmed."""

    header: Header = Header.OPEN
    record: tuple[Ack, ...] = ()
    processed: Messages = NONE
    left: int = 0
    under_way: UnderWay | None = None

    @property
    def covers(self) -> Messages:
        return frozenset().union(*(ack.covers for ack in self.record))


class Holder(NamedTuple):
    """``given``: what it has of a lease that it believes in; ``old``: what the application has of one that was lost."""

    given: Messages = NONE
    old: Messages = NONE
    transactions: tuple[Transaction, ...] = ()

    def may_begin(self, transactions_max: int) -> bool:
        ended = not self.transactions or self.transactions[-1].header is not Header.OPEN
        return ended and len(self.transactions) < transactions_max

    def acknowledged(self, *headers: Header) -> Messages:
        """What it acknowledged itself, in transactions of which that became."""
        return frozenset().union(*(one.covers for one in self.transactions if one.header in headers))


class State(NamedTuple):
    a: Holder = Holder()
    b: Holder = Holder()
    a_leads: bool = True
    noticed: bool = False
    back: bool = False
    needless: bool = False


class Model:
    """The steps, with one of the rules left out, or none."""

    def __init__(self, without: Rule | None) -> None:
        self._without = without

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        if state.a_leads and not state.back and state.a.given:
            yield "the lease goes to b", state._replace(a_leads=False)
        elif not state.a_leads and not state.noticed:
            gone = state.a._replace(given=NONE, old=state.a.given)
            yield "a notices that its lease was lost", state._replace(noticed=True, a=gone)
        if state.noticed and not state.a_leads and _is_done(state.b):
            yield "the lease goes back to a", state._replace(a_leads=True, back=True)
        for name, leads in (("a", state.a_leads), ("b", not state.a_leads)):
            holder: Holder = getattr(state, name)
            if leads:
                given = holder.given | (ALL - _done(state) - _held(state))
                yield f"{name} is given {_listed(given)}", state._replace(**{name: holder._replace(given=given)})
            if holder.may_begin(len(ACKS_MAX[name])) and (holder.given or holder.old):
                begins = Transaction(left=ACKS_MAX[name][len(holder.transactions)])
                begun = holder._replace(transactions=(*holder.transactions, begins))
                yield f"{name} begins a transaction", state._replace(**{name: begun})
            if holder.transactions and holder.transactions[-1].header is Header.OPEN:
                yield from self._in_transaction(state, name, holder)

    def _in_transaction(self, state: State, name: str, holder: Holder) -> Iterator[tuple[str, State]]:
        txn = holder.transactions[-1]
        yield f"{name}'s transaction is aborted", _with(state, name, Transaction(Header.ABORTED, txn.record))
        if txn.under_way is not None:
            yield from self._acknowledging(state, name, txn, txn.under_way)
            return
        if txn.processed:
            ended = Transaction(Header.COMMITTED, txn.record, txn.processed)
            yield f"{name}'s transaction is committed", _with(state, name, ended)
        for ack in (Ack(one, kind) for one in sorted(holder.given | holder.old) for kind in (False, True)):
            lost = ack.cumulative and ack.message not in holder.given and self._without is not Rule.LOST_WITH_THE_LEASE
            if not txn.left or lost:
                continue
            begun = txn._replace(left=txn.left - 1, under_way=UnderWay(ack, self._claimed(holder, ack)))
            if self._without is not Rule.AFTER_THE_PUT:
                yield f"{name} puts {ack}", _with(state, name, _put(begun))
            elif not (begun.under_way.claimed & _done(state) if begun.under_way else NONE):
                yield f"{name} finds that it may acknowledge {ack}", _with(state, name, begun)

    def _claimed(self, holder: Holder, ack: Ack) -> Messages:
        """Return the messages that the acknowledgment covers by the holder's own memory."""
        given = holder.given if self._without is Rule.NOT_GIVEN_AGAIN else holder.given | holder.old
        if self._without is Rule.LOST_WITH_THE_LEASE and ack.message not in holder.given:
            given = NONE  # nothing of it is remembered under the lease that there is
        if self._without is Rule.NEVER_GIVEN_PASSED_OVER:
            given = ALL
        passed: tuple[Header, ...] = (Header.COMMITTED,)
        if self._without is Rule.OWN_PASSED_OVER:
            passed = ()
        elif self._without is Rule.OWN_ONCE_COMMITTED:
            passed = (Header.COMMITTED, Header.ABORTED)
        if self._without is Rule.GIVEN_IS_CHECKED or not ack.cumulative:
            return NONE
        return (given & ack.covers) - holder.acknowledged(*passed)

    def _acknowledging(
        self, state: State, name: str, txn: Transaction, under_way: UnderWay
    ) -> Iterator[tuple[str, State]]:
        ack = under_way.ack
        if not under_way.was_put:
            yield f"{name} puts {ack}", _with(state, name, _put(txn))
        elif self._conflicts(state, name, txn, under_way):
            back = _with(state, name, txn._replace(record=txn.record[:-1], under_way=None))
            needless = _is_nobodys(state, name, ack)
            yield f"{name} looks, and takes {ack} back", back._replace(needless=needless)
        else:
            processed = txn.processed | _processed(getattr(state, name), ack)
            yield (
                f"{name} looks, and confirms {ack}",
                _with(state, name, txn._replace(processed=processed, under_way=None)),
            )

    def _conflicts(self, state: State, name: str, txn: Transaction, under_way: UnderWay) -> bool:
        ack, done = under_way.ack, _done(state)
        if any(_overlap(ack, held) for held in _others(state, name)):
            return True
        own = any(one.cumulative and ack.message <= one.message for one in txn.record[:-1])
        if not ack.cumulative and own and self._without is Rule.NAMED_UNDER_OWN:
            return False
        as_entry = ack == Ack(1, True) and self._without is Rule.LAST_OF_BATCH
        named = done >= BATCH if as_entry else ack.message in done
        checked = NONE if self._without is Rule.AFTER_THE_PUT else under_way.claimed
        return named or bool(checked & done)


def _put(txn: Transaction) -> Transaction:
    assert txn.under_way is not None
    return txn._replace(record=(*txn.record, txn.under_way.ack), under_way=txn.under_way._replace(was_put=True))


def _is_done(holder: Holder) -> bool:
    return bool(holder.transactions) and holder.transactions[-1].header is not Header.OPEN


def _with(state: State, name: str, txn: Transaction) -> State:
    holder: Holder = getattr(state, name)
    return state._replace(**{name: holder._replace(transactions=(*holder.transactions[:-1], txn))})


def _done(state: State) -> Messages:
    return state.a.acknowledged(Header.COMMITTED) | state.b.acknowledged(Header.COMMITTED)


def _held(state: State) -> Messages:
    return state.a.acknowledged(Header.OPEN) | state.b.acknowledged(Header.OPEN)


def _others(state: State, name: str) -> list[Ack]:
    """What open transactions of the other holder have put."""
    other = state.b if name == "a" else state.a
    return [ack for txn in other.transactions if txn.header is Header.OPEN for ack in txn.record]


def _overlap(one: Ack, other: Ack) -> bool:
    return (one.cumulative and other.cumulative) or bool(one.covers & other.covers)


def _processed(holder: Holder, ack: Ack) -> Messages:
    """What the application makes of an acknowledgment that was confirmed."""
    if not ack.cumulative:
        return ack.covers
    had = (holder.given | holder.old) & ack.covers
    return (had - holder.acknowledged(Header.COMMITTED)) | {ack.message}


def _is_nobodys(state: State, name: str, ack: Ack) -> bool:
    """Return whether no other holder has a part in the covered messages, and the named message is unfinished."""
    holder, other = (state.a, state.b) if name == "a" else (state.b, state.a)
    theirs = other.acknowledged(Header.COMMITTED) & _processed(holder, ack)
    in_the_way = any(_overlap(ack, held) for held in _others(state, name))
    return ack.cumulative and not theirs and not in_the_way and ack.message not in _done(state)


def _listed(messages: Messages) -> str:
    return " and ".join(map(str, sorted(messages))) or "nothing"


def wrong(state: State) -> str | None:
    if state.needless:
        return NEEDLESS
    counted: list[int] = []
    for holder in (state.a, state.b):
        for txn in holder.transactions:
            counted += txn.processed if txn.header is Header.COMMITTED else ()
    return TWICE if len(counted) != len(set(counted)) else None


def explored(without: Rule | None = None) -> Explored:
    return explore(State(), Model(without).steps, wrong)
