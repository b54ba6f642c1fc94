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
    One message that one call acknowledged; with ``cumulative``, also all messages before it in its segment.

    ``derived``: a cumulative call also acknowledges, in each ancestor of the message's segment, the messages that the
    consumer had received. Such an ack is uncertain: a consumer that stood by in the meantime has forgotten what it
    received.
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
        """Whether the acknowledgment was made outside transactions."""
        return self.transaction is None

    @property
    def possible(self) -> bool:
        """Whether the acknowledgment may have taken effect, during the call or later."""
        # An acknowledgment over several segments may fail on one of them and succeed on another.
        if not self.call.possible and not (self.several and self.plain):
            return False
        return self.transaction is None or (
            self.transaction.may_be_committed and self.transaction.may_count(self.branch)
        )

    @property
    def effective_at(self) -> int:
        """
        The event by which the ack had certainly taken effect, if no transaction held the message.

        NEVER: no such event is known.
        """
        if not self.call.ok or self.derived:
            return NEVER
        if self.transaction is None:
            return self.call.ended
        if self.transaction.state != COMMITTED or not self.transaction.counts(self.branch):
            return NEVER
        return max(self.call.ended, min(call.ended for call in self.transaction.committed))

    def may_hold_during(self, call: Call) -> bool:
        """
        Whether the ack may have been pending in a transaction during a call.

        An ack outside transactions is dropped in that case.
        """
        transaction = self.transaction
        if transaction is None or self.call.began > call.ended:
            return False
        return transaction.state is None or transaction.ended_at > call.began


class CumulativeIndex:
    """Finds, among the cumulative acknowledgments of one segment that reach a place, the one with the lowest key."""

    def __init__(self, acks: Iterable[Ack], key: Callable[[Ack], int]) -> None:
        self._acks = sorted(acks, key=lambda ack: ack.place)
        self._places = [ack.place for ack in self._acks]
        best: Ack | None = None
        for number in range(len(self._acks) - 1, -1, -1):
            ack = self._acks[number]
            best = ack if best is None or key(ack) < key(best) else best
            self._acks[number] = best

    def reaching(self, place: MessagePosition) -> Ack | None:
        """Return the ack with the lowest key that acknowledges a place, or None."""
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
        """
        Return these acks with their indexes.

        ``moves``: consumers move dead letters, in separate transactions.
        """
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
        """Return the ack of a message that certainly took effect first, among those of one incarnation."""
        ladder = self._definite.get((place.segment, incarnation))
        found = [ack for ack in self.singles.get(place, ()) if ack.incarnation == incarnation]
        reaching = None if ladder is None else ladder.reaching(place)
        if reaching is not None:
            found.append(reaching)
        certain = [ack for ack in found if ack.effective_at < NEVER and not self.is_overruled(ack, place)]
        return min(certain, key=lambda ack: ack.effective_at, default=None)

    def possible(self, place: MessagePosition, after: int) -> Ack | None:
        """Return an ack of a message that may have taken effect, and whose call ended after an event."""
        for ack in self.singles.get(place, ()):
            if ack.possible and ack.call.ended > after:
                return ack
        ladder = self._possible.get(place.segment)
        reaching = None if ladder is None else ladder.reaching(place)
        return reaching if reaching is not None and reaching.call.ended > after else None

    def possible_cumulatively(self, place: MessagePosition) -> bool:
        """Whether any cumulative ack that reaches a message may have taken effect."""
        ladder = self._possible.get(place.segment)
        return ladder is not None and ladder.reaching(place) is not None

    def tried(self, place: MessagePosition, after: int) -> list[Ack]:
        """Return the acks of a message whose calls ended after an event, whatever their outcomes."""
        found = [ack for ack in self.singles.get(place, ()) if ack.call.ended > after]
        pending = self._pending.get(place.segment, ())
        return found + [ack for ack in pending if ack.place >= place and ack.call.ended > after]

    def only_by(self, transaction: TransactionFacts, place: MessagePosition, after: int) -> bool:
        """Whether no other acknowledgment of a message since an event may have taken effect."""
        ladder = self._possible.get(place.segment)
        reached = None if ladder is None else ladder.reaching(place)
        if reached is not None and reached.call.ended > after:
            return False
        others = (ack for ack in self.singles.get(place, ()) if ack.transaction is not transaction)
        return not any(ack.possible and ack.call.ended > after for ack in others)

    def is_overruled(self, ack: Ack, place: MessagePosition) -> bool:
        """
        Whether the ack was made outside transactions while a transaction may have held the message.

        Such an ack is dropped.
        """
        if not ack.plain:
            return False
        if self._moves:
            return True  # a transaction that the history does not contain may have held the message
        held = (*self.singles.get(place, ()), *self._holding.get(place.segment, ()))
        return any(one.place >= place and one.may_hold_during(ack.call) for one in held)
