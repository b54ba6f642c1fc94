"""Random sequences of calls, checked against a simple model of permits and assignments."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from txnframework.errors import ConsumerBusy
from txnframework.interfaces import IDispatcher
from txnframework.model import Assignment, Candidate, ConsumerInfo, Ordering, Position
from txnframework.testing._suites._dispatcher._case import DispatcherRules, at
from txnframework.testing._suites._dispatcher.common import STANDARD_TYPES

STEPS = 250
CONSUMERS = 5
KEYS = (None, None, b"", b"a", b"b", b"c", b"d")
READ_AHEAD = 12


@dataclass
class Account:
    """A model of permits, outstanding messages and waiting messages; it checks each answer of a dispatcher."""

    kind: str
    ordering: Ordering
    stands_by: bool
    permits: dict[int, int] = field(default_factory=dict)
    infos: dict[int, ConsumerInfo] = field(default_factory=dict)
    waiting: dict[Position, Candidate] = field(default_factory=dict)
    outstanding: dict[Position, tuple[int, Candidate]] = field(default_factory=dict)
    active: int | None = None
    next_entry: int = 0
    next_consumer: int = 1

    # -- what happened --------------------------------------------------------------------------------

    def attached(self, info: ConsumerInfo) -> None:
        """Record a consumer that was accepted."""
        if info.consumer_id not in self.infos:
            assert self.kind != "exclusive" or not self.infos, "two consumers of an exclusive subscription"
            self.infos[info.consumer_id] = info
            self.permits[info.consumer_id] = info.permits
            self._choose()

    def detached(self, consumer_id: int, returned: frozenset[Position]) -> None:
        """Check which messages a detached consumer returned."""
        held = {position for position, (holder, _) in self.outstanding.items() if holder == consumer_id}
        assert returned == (held if consumer_id in self.infos else set())
        self.infos.pop(consumer_id, None)
        self.permits.pop(consumer_id, None)
        if self.active == consumer_id:
            self.active = None
            self._choose()

    def released(self, positions: frozenset[Position], again: bool) -> None:
        """Record positions that are no longer outstanding; with ``again`` they wait for redelivery."""
        for position in positions:
            _, candidate = self.outstanding.pop(position)
            if again:
                self.waiting[position] = Candidate(position, candidate.key, candidate.redelivery_count + 1)

    def offer(self) -> tuple[Candidate, ...]:
        """Return the waiting messages in reading order, up to the read-ahead limit."""
        return tuple(self.waiting[position] for position in sorted(self.waiting))[:READ_AHEAD]

    def assigned(self, offer: tuple[Candidate, ...], answer: tuple[Assignment, ...]) -> None:
        """Check each assignment of an answer, and that no message was left that could have been assigned."""
        places = [candidate.position for candidate in offer]
        chosen = [one.position for one in answer]
        assert chosen == [place for place in places if place in set(chosen)], "not in reading order, or not offered"
        takers = {one.position: one.consumer_id for one in answer}
        held_up: set[bytes | None] = set()
        for candidate in offer:
            group = self._group(candidate)
            taker = takers.get(candidate.position)
            if taker is None:
                assert group in held_up or not self._can_take(candidate), f"{candidate} was left although it could go"
                if group is not None:
                    held_up.add(group)
                continue
            assert group is None or group not in held_up, f"{candidate} overtakes what stands before it"
            self._take(candidate, taker)

    # -- the rules ------------------------------------------------------------------------------------

    def _group(self, candidate: Candidate) -> bytes | None:
        """Return the group in which a message is kept in order; None if it is in no group."""
        if self.ordering is Ordering.NONE:
            return None
        return candidate.key if self.ordering is Ordering.KEY else b"everything"

    def _holders(self, group: bytes | None) -> set[int]:
        return {holder for holder, one in self.outstanding.values() if group is not None and self._group(one) == group}

    def _takers(self, candidate: Candidate) -> set[int]:
        """Return the consumers to which this message may be assigned now."""
        able = {consumer for consumer, permits in self.permits.items() if permits > 0}
        holders = self._holders(self._group(candidate))
        if holders:
            able &= holders
        if self.kind == "failover":
            able &= {self.active} if self.active is not None else set()
        if self.kind == "shared":
            first = min((self.infos[one].priority for one in able), default=0)
            able = {one for one in able if self.infos[one].priority == first}
        return able

    def _can_take(self, candidate: Candidate) -> bool:
        """Return whether a message must be assigned; a type of another name may hold some back, but not permanently."""
        if self.kind in STANDARD_TYPES:
            return bool(self._takers(candidate))
        return bool(self.permits) and not self.outstanding and all(one > 0 for one in self.permits.values())

    def _take(self, candidate: Candidate, taker: int) -> None:
        assert taker in self._takers(candidate), f"{candidate} may not go to consumer {taker}"
        self.permits[taker] -= 1
        self.outstanding[candidate.position] = (taker, candidate)
        del self.waiting[candidate.position]

    def _choose(self) -> None:
        if self.active is None and self.infos:
            self.active = min(self.infos.values(), key=lambda one: one.priority).consumer_id


class CallSequenceRules(DispatcherRules):
    """No sequence of calls breaks a rule."""

    @pytest.mark.parametrize("seed", range(12))
    async def test_random_sequences(self, seed: int) -> None:
        """
        Permits are never exceeded, order is kept, no message is assigned twice, and none waits that could be assigned.

        If this fails, run the test again: the same seed gives the same sequence.
        """
        chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
        async with self.data.open() as dispatcher:
            account = Account(dispatcher.subscription_type, dispatcher.ordering, dispatcher.stands_by)
            for _ in range(STEPS):
                await self.step(dispatcher, account, chance)

    async def step(self, dispatcher: IDispatcher, account: Account, chance: random.Random) -> None:
        """Make one call of a broker, then offer the waiting messages."""
        consumer_id = chance.choice([*account.infos, account.next_consumer])
        some = frozenset(position for position in sorted(account.outstanding) if chance.random() < 0.4)
        match chance.choice(("attach", "attach", "detach", "permit", "permit", "done", "again", "read", "read")):
            case "attach" if len(account.infos) < CONSUMERS:
                # The id of a detached consumer is not reused; an attached consumer may attach again.
                account.next_consumer = max(account.next_consumer, consumer_id + 1)
                info = ConsumerInfo(consumer_id, f"c{consumer_id}", chance.randint(0, 2), chance.randint(0, 3))
                try:
                    dispatcher.attach(info)
                except ConsumerBusy:
                    assert account.infos
                    assert not account.stands_by, "one that stands by was refused"
                    assert account.kind == "exclusive" or account.kind not in STANDARD_TYPES
                else:
                    account.attached(info)
            case "detach":
                account.detached(consumer_id, dispatcher.detach(consumer_id))
            case "permit":
                messages = chance.randint(1, 4)
                dispatcher.permit(consumer_id, messages)
                if consumer_id in account.permits:
                    account.permits[consumer_id] += messages
            case "done":
                account.released(some, again=False)
                dispatcher.released(some)
            case "again":
                account.released(some, again=True)
                dispatcher.released(some)
            case "read":
                for _ in range(chance.randint(1, 5)):
                    position = at(account.next_entry)
                    account.waiting[position] = Candidate(position, chance.choice(KEYS), 0)
                    account.next_entry += 1
        offer = account.offer()
        if offer:
            account.assigned(offer, dispatcher.assign(offer))
