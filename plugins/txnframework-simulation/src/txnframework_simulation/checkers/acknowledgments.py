"""What a history shows about each acknowledgment: whether it certainly took effect, and whether it may have."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from txnframework_simulation.checkers.transactions import COMMITTED, NEVER, TransactionFacts
from txnframework_simulation.history import Call, MessagePosition


@dataclass(frozen=True, slots=True)
class Ack:
    """
    One message that one call acknowledged, or with ``cumulative`` everything in its segment up to it.

    ``derived``: on a segment that the one of the message came of, as far as the consumer had received it. That need
    not have happened: who stood by in between has forgotten.
    """

    place: MessagePosition
    incarnation: int
    cumulative: bool
    consumer: str
    call: Call
    transaction: TransactionFacts | None
    branch: int
    several: bool
    derived: bool = False

    @property
    def plain(self) -> bool:
        """Whether it was made outside transactions."""
        return self.transaction is None

    @property
    def possible(self) -> bool:
        """Whether it may have taken effect, then or later."""
        # One that spans several segments may fail on one of them and have been done on another.
        if not self.call.possible and not (self.several and self.plain):
            return False
        return self.transaction is None or (
            self.transaction.may_be_committed and self.transaction.may_count(self.branch)
        )

    @property
    def effective_at(self) -> int:
        """The event by which it surely had taken effect, if no transaction held the message; NEVER: none is known."""
        if not self.call.ok or self.derived:
            return NEVER
        if self.transaction is None:
            return self.call.ended
        if self.transaction.state != COMMITTED or not self.transaction.counts(self.branch):
            return NEVER
        return max(self.call.ended, min(call.ended for call in self.transaction.committed))

    def may_hold_during(self, call: Call) -> bool:
        """Whether it may have been pending at a moment of a call, for a transaction: a plain one is dropped then."""
        transaction = self.transaction
        if transaction is None or self.call.began > call.ended:
            return False
        return transaction.state is None or transaction.ended_at > call.began


class CumulativeIndex:
    """Cumulative acknowledgments of one segment: which of those that reach so far is the best, by a key."""

    def __init__(self, acks: Iterable[Ack], key: Callable[[Ack], int]) -> None:
        self._acks = sorted(acks, key=lambda ack: ack.place)
        self._places = [ack.place for ack in self._acks]
        best: Ack | None = None
        for number in range(len(self._acks) - 1, -1, -1):
            ack = self._acks[number]
            best = ack if best is None or key(ack) < key(best) else best
            self._acks[number] = best

    def reaching(self, place: MessagePosition) -> Ack | None:
        """Return the best one that acknowledges a place; None: none does."""
        at = bisect_left(self._places, place)
        return self._acks[at] if at < len(self._acks) else None


@dataclass(slots=True)
class SubscriptionAcks:
    """All acknowledgments of one subscription."""

    all: list[Ack] = field(default_factory=list)
    singles: dict[MessagePosition, list[Ack]] = field(default_factory=dict)
    _definite: dict[tuple[str, int], CumulativeIndex] = field(default_factory=dict)
    _possible: dict[str, CumulativeIndex] = field(default_factory=dict)
    _pending: dict[str, list[Ack]] = field(default_factory=dict)
    _holding: dict[str, list[Ack]] = field(default_factory=dict)
    _moves: bool = False

    @classmethod
    def of(cls, acks: list[Ack], moves: bool = False) -> SubscriptionAcks:
        """Return them with what finds them; ``moves``: consumers move dead letters, in transactions of their own."""
        singles: defaultdict[MessagePosition, list[Ack]] = defaultdict(list)
        certain: defaultdict[tuple[str, int], list[Ack]] = defaultdict(list)
        perhaps: defaultdict[str, list[Ack]] = defaultdict(list)
        pending: defaultdict[str, list[Ack]] = defaultdict(list)
        holding: defaultdict[str, list[Ack]] = defaultdict(list)
        for ack in acks:
            if not ack.cumulative:
                singles[ack.place].append(ack)
                continue
            if ack.effective_at < NEVER:
                certain[ack.place.segment, ack.incarnation].append(ack)
            if ack.possible:
                perhaps[ack.place.segment].append(ack)
            if ack.transaction is not None:
                holding[ack.place.segment].append(ack)
                if ack.transaction.state != COMMITTED:
                    pending[ack.place.segment].append(ack)
        return cls(
            acks,
            dict(singles),
            {key: CumulativeIndex(some, lambda ack: ack.effective_at) for key, some in certain.items()},
            {key: CumulativeIndex(some, lambda ack: -ack.call.ended) for key, some in perhaps.items()},
            dict(pending),
            dict(holding),
            moves,
        )

    def effective(self, place: MessagePosition, incarnation: int) -> Ack | None:
        """Return the ack of a message, received under an incarnation, that surely took effect first."""
        ladder = self._definite.get((place.segment, incarnation))
        found = [ack for ack in self.singles.get(place, ()) if ack.incarnation == incarnation]
        reaching = None if ladder is None else ladder.reaching(place)
        if reaching is not None:
            found.append(reaching)
        certain = [ack for ack in found if ack.effective_at < NEVER and not self.is_overruled(ack, place)]
        return min(certain, key=lambda ack: ack.effective_at, default=None)

    def possible(self, place: MessagePosition, after: int) -> Ack | None:
        """Return an ack of a message that may have taken effect and did not end before an event."""
        for ack in self.singles.get(place, ()):
            if ack.possible and ack.call.ended > after:
                return ack
        ladder = self._possible.get(place.segment)
        reaching = None if ladder is None else ladder.reaching(place)
        return reaching if reaching is not None and reaching.call.ended > after else None

    def possible_cumulatively(self, place: MessagePosition) -> bool:
        """Whether a cumulative ack that reaches a message may have taken effect at any time."""
        ladder = self._possible.get(place.segment)
        return ladder is not None and ladder.reaching(place) is not None

    def tried(self, place: MessagePosition, after: int) -> list[Ack]:
        """Return the acks of a message that did not end before an event, whatever became of them."""
        found = [ack for ack in self.singles.get(place, ()) if ack.call.ended > after]
        pending = self._pending.get(place.segment, ())
        return found + [ack for ack in pending if ack.place >= place and ack.call.ended > after]

    def only_by(self, transaction: TransactionFacts, place: MessagePosition, after: int) -> bool:
        """Whether only this transaction can have acknowledged a message since an event."""
        ladder = self._possible.get(place.segment)
        reached = None if ladder is None else ladder.reaching(place)
        if reached is not None and reached.call.ended > after:
            return False
        others = (ack for ack in self.singles.get(place, ()) if ack.transaction is not transaction)
        return not any(ack.possible and ack.call.ended > after for ack in others)

    def is_overruled(self, ack: Ack, place: MessagePosition) -> bool:
        """Whether it was made outside transactions while one may have held the message: it is dropped then."""
        if not ack.plain:
            return False
        if self._moves:
            return True  # a transaction of which the history knows nothing may have held it
        held = (*self.singles.get(place, ()), *self._holding.get(place.segment, ()))
        return any(one.place >= place and one.may_hold_during(ack.call) for one in held)
