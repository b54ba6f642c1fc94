"""The dispatcher suite detects faults: each dispatcher here breaks one rule on purpose, and its test fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from txnframework.errors import ConsumerBusy
from txnframework.interfaces import IDispatcher
from txnframework.model import Assignment, Candidate, ConsumerInfo, Ordering, Position
from txnframework.plugin import DispatcherContext, Provider
from txnframework.testing import DispatcherHarness, DispatcherSuite
from txnframework_dispatchers import ExclusiveDispatcher, FailoverDispatcher, KeySharedDispatcher, SharedDispatcher

Waiting = tuple[Candidate, ...]
Answer = tuple[Assignment, ...]


# -- of every type, shown on one ----------------------------------------------------------------------


class DeclaresNoOrder(ExclusiveDispatcher):
    """Has a standard type, and declares another order than that type's."""

    ordering = Ordering.NONE


class IgnoresPermits(ExclusiveDispatcher):
    """Assigns all messages, whatever the permits are."""

    def assign(self, waiting: Waiting) -> Answer:
        for attached in self._consumers.values():
            attached.permits = len(waiting)
        return super().assign(waiting)


class GivesPermitsBack(ExclusiveDispatcher):
    """Returns a permit when a message is released."""

    def released(self, positions: frozenset[Position]) -> None:
        super().released(positions)
        for attached in self._consumers.values():
            attached.permits += len(positions)


class LastFirst(ExclusiveDispatcher):
    """Assigns against the reading order."""

    def assign(self, waiting: Waiting) -> Answer:
        return super().assign(waiting[::-1])


class RemembersWhatItGave(SharedDispatcher):
    """Never assigns a message again."""

    def assign(self, waiting: Waiting) -> Answer:
        given: set[Position] = self.__dict__.setdefault("given", set())
        answer = super().assign(tuple(one for one in waiting if one.position not in given))
        given |= {one.position for one in answer}
        return answer


class SwallowsWhatNobodyTakes(RemembersWhatItGave):
    """Takes offered messages for assigned."""

    def assign(self, waiting: Waiting) -> Answer:
        answer = super().assign(waiting)
        self.given |= {one.position for one in waiting}  # type: ignore[attr-defined]
        return answer


class ReturnsNothing(ExclusiveDispatcher):
    """Drops the messages of a leaving consumer."""

    def detach(self, consumer_id: int) -> frozenset[Position]:
        super().detach(consumer_id)
        return frozenset()


class ReturnsTooMuch(ExclusiveDispatcher):
    """Returns released messages of a leaving consumer, too."""

    def released(self, positions: frozenset[Position]) -> None:
        self._left_behind -= positions


class KeepsPermits(ExclusiveDispatcher):
    """Gives a returning consumer its former permits."""

    def attach(self, consumer: ConsumerInfo) -> None:
        left: dict[int, int] = self.__dict__.setdefault("left", {})
        super().attach(replace(consumer, permits=consumer.permits + left.get(consumer.consumer_id, 0)))

    def detach(self, consumer_id: int) -> frozenset[Position]:
        if consumer_id in self._consumers:
            self.__dict__.setdefault("left", {})[consumer_id] = self._consumers[consumer_id].permits
        return super().detach(consumer_id)


class AttachesTwice(ExclusiveDispatcher):
    """Accepts the same consumer twice."""

    def attach(self, consumer: ConsumerInfo) -> None:
        self._consumers.pop(consumer.consumer_id, None)
        super().attach(consumer)


class RefusesUnknownReleases(ExclusiveDispatcher):
    """Fails when a message is released that no consumer holds."""

    def released(self, positions: frozenset[Position]) -> None:
        for position in positions:
            assert any(position in one.has for one in self._consumers.values())
        super().released(positions)


# -- of a name of its own, and breaking what it declares -----------------------------------------------


class BreaksItsOrder(SharedDispatcher):
    """Declares a total order, and assigns messages in turn."""

    subscription_type = "relay"
    ordering = Ordering.SEGMENT


class BreaksTheOrderOfKeys(SharedDispatcher):
    """Declares an order by key, and assigns messages in turn."""

    subscription_type = "relay_by_key"
    ordering = Ordering.KEY


class RefusesWhoStandsBy(ExclusiveDispatcher):
    """Declares standing by, and accepts one consumer only."""

    subscription_type = "relay"
    stands_by = True


class KeepsAllBack(FailoverDispatcher):
    """Never assigns a message."""

    subscription_type = "relay"

    def assign(self, waiting: Waiting) -> Answer:
        return ()


# -- exclusive ----------------------------------------------------------------------------------------


class LetsEverybodyIn(ExclusiveDispatcher):
    """Lets a second consumer in."""

    def attach(self, consumer: ConsumerInfo) -> None:
        super(ExclusiveDispatcher, self).attach(consumer)


class ReplacesTheFirst(ExclusiveDispatcher):
    """Refuses the second consumer and forgets the first."""

    def attach(self, consumer: ConsumerInfo) -> None:
        try:
            super().attach(consumer)
        except ConsumerBusy:
            self._consumers.clear()
            raise


def overtaking(kind: type[Any]) -> type[Any]:
    """Return a dispatcher that assigns messages behind ones that were left and not released."""

    class Overtakes(kind):  # type: ignore[misc]
        def assign(self, waiting: Waiting) -> Answer:
            self._left_behind.clear()
            for key in [key for key, one in getattr(self, "_assigned", {}).items() if self._gone(one)]:
                del self._assigned[key]
            return super().assign(waiting)  # type: ignore[no-any-return]

        def _gone(self, held: Any) -> bool:
            return held.consumer_id not in self._consumers

        def released(self, positions: frozenset[Position]) -> None:
            if hasattr(self, "_key_at"):
                positions = frozenset(one for one in positions if self._key_at.get(one) in {None, *self._assigned})
            super().released(positions)

    return Overtakes


# -- failover -----------------------------------------------------------------------------------------


class DealsOutAll(SharedDispatcher):
    """Has the failover type, and assigns messages to all consumers."""

    subscription_type = "failover"
    ordering = Ordering.SEGMENT
    stands_by = True


class FollowsInReverse(FailoverDispatcher):
    """Prefers the consumer that attached last."""

    def _next(self) -> Any:
        return min(reversed(self._consumers.values()), key=lambda one: one.info.priority, default=None)


class FollowsByNumber(FailoverDispatcher):
    """Ignores priorities."""

    def _next(self) -> Any:
        return next(iter(self._consumers.values()), None)


class Interrupts(FailoverDispatcher):
    """Switches at once to a consumer of higher priority."""

    def attach(self, consumer: ConsumerInfo) -> None:
        super().attach(consumer)
        self._active = self._next()


# -- shared -------------------------------------------------------------------------------------------


class FirstTakesAll(SharedDispatcher):
    """Gives one consumer all of its permits before the next."""

    def _able(self) -> Any:
        return sorted(super()._able(), key=lambda one: one.info.consumer_id)[:1]


class WaitsForItsTurn(SharedDispatcher):
    """Assigns nothing while the next consumer in turn has no permits."""

    def assign(self, waiting: Waiting) -> Answer:
        if any(one.permits <= 0 for one in self._consumers.values()):
            return ()
        return super().assign(waiting)


class KnowsNoPriorities(SharedDispatcher):
    """Ignores priorities."""

    def attach(self, consumer: ConsumerInfo) -> None:
        super().attach(replace(consumer, priority=0))


class WaitsForWhatWasLeft(SharedDispatcher):
    """Keeps an order that was not requested."""

    def assign(self, waiting: Waiting) -> Answer:
        return () if self._left_behind else super().assign(waiting)


# -- key_shared ---------------------------------------------------------------------------------------


class KnowsNoKeys(SharedDispatcher):
    """Has the key_shared type, and assigns messages in turn."""

    subscription_type = "key_shared"
    ordering = Ordering.KEY


class HoldsUpAll(KeySharedDispatcher):
    """Blocks all messages behind a key that waits."""

    def assign(self, waiting: Waiting) -> Answer:
        for number, candidate in enumerate(waiting):
            held = self._assigned.get(candidate.key) if candidate.key is not None else None
            if held is not None and self._receiver(candidate.key) is None:
                return super().assign(waiting[:number])
        return super().assign(waiting)


class PassesOver(KeySharedDispatcher):
    """Assigns a later message of a key whose first one waits."""

    def assign(self, waiting: Waiting) -> Answer:
        answer = super().assign(waiting)
        taken = {one.position for one in answer}
        free = next((one for one in self._consumers.values() if one.permits > 0), None)
        late = next((one for one in waiting[::-1] if one.position not in taken), None)
        return answer if free is None or late is None else (*answer, free.take(late))


class NeverFreesKeys(KeySharedDispatcher):
    """Never releases a key from its first consumer."""

    def released(self, positions: frozenset[Position]) -> None:
        super(KeySharedDispatcher, self).released(positions)


class TakesNoneForAKey(KeySharedDispatcher):
    """Treats messages without a key as one key."""

    def assign(self, waiting: Waiting) -> Answer:
        return super().assign(tuple(replace(one, key=one.key or b"") for one in waiting))


class TakesEmptyForNone(KeySharedDispatcher):
    """Treats an empty key as no key."""

    def assign(self, waiting: Waiting) -> Answer:
        return super().assign(tuple(replace(one, key=one.key or None) for one in waiting))


class GoesRoundWithKeys(KeySharedDispatcher):
    """Gives a free key to the next consumer in turn."""

    def _receiver(self, key: bytes | None) -> Any:
        return super()._receiver(key if key is None or key in self._assigned else None)


CASES = [
    (DeclaresNoOrder, "test_keeps_the_interface"),
    (SwallowsWhatNobodyTakes, "test_nobody_there"),
    (IgnoresPermits, "test_permits"),
    (GivesPermitsBack, "test_permits"),
    (LastFirst, "test_reading_order"),
    (RemembersWhatItGave, "test_given_back_comes_again"),
    (RemembersWhatItGave, "test_left_and_released"),
    (RemembersWhatItGave, "test_memory_is_bounded"),
    (NeverFreesKeys, "test_memory_is_bounded"),
    (ReturnsNothing, "test_detach_returns_what_was_held"),
    (ReturnsTooMuch, "test_detach_returns_what_was_held"),
    (KeepsPermits, "test_gone_takes_nothing"),
    (AttachesTwice, "test_attaching_again"),
    (RefusesUnknownReleases, "test_releasing_what_is_not_outstanding"),
    (LetsEverybodyIn, "test_another_one_is_refused"),
    (ReplacesTheFirst, "test_another_one_is_refused"),
    (BreaksItsOrder, "test_everything_goes_to_one_at_a_time"),
    (BreaksItsOrder, "test_nothing_overtakes_what_is_left"),
    (overtaking(ExclusiveDispatcher), "test_nothing_overtakes_what_is_left"),
    (BreaksTheOrderOfKeys, "test_each_key_goes_to_one_at_a_time"),
    (KnowsNoKeys, "test_each_key_goes_to_one_at_a_time"),
    (BreaksTheOrderOfKeys, "test_no_key_is_overtaken"),
    (overtaking(KeySharedDispatcher), "test_no_key_is_overtaken"),
    (RefusesWhoStandsBy, "test_others_stand_by"),
    (KeepsAllBack, "test_others_stand_by"),
    (DealsOutAll, "test_one_is_active"),
    (FollowsInReverse, "test_who_follows"),
    (FollowsByNumber, "test_who_follows"),
    (Interrupts, "test_the_active_one_is_not_interrupted"),
    (overtaking(FailoverDispatcher), "test_nothing_overtakes_what_is_left"),
    (FirstTakesAll, "test_in_turn"),
    (WaitsForItsTurn, "test_without_permits_passed_over"),
    (KnowsNoPriorities, "test_priorities"),
    (WaitsForWhatWasLeft, "test_what_was_left_holds_up_nobody"),
    (KnowsNoKeys, "test_a_key_is_one_consumers"),
    (HoldsUpAll, "test_a_key_that_waits_holds_up_only_itself"),
    (KnowsNoKeys, "test_a_key_in_order"),
    (NeverFreesKeys, "test_free_again"),
    (overtaking(KeySharedDispatcher), "test_a_key_that_was_left"),
    (TakesNoneForAKey, "test_no_key_and_the_empty_key"),
    (TakesEmptyForNone, "test_no_key_and_the_empty_key"),
    (GoesRoundWithKeys, "test_as_a_rule_the_same_one"),
]

SEQUENCES = [
    IgnoresPermits, GivesPermitsBack, LastFirst, RemembersWhatItGave, ReturnsNothing, ReturnsTooMuch, AttachesTwice,
    LetsEverybodyIn, DealsOutAll, FollowsInReverse, Interrupts, WaitsForItsTurn,
    WaitsForWhatWasLeft, KnowsNoKeys, HoldsUpAll, PassesOver, NeverFreesKeys, TakesNoneForAKey, TakesEmptyForNone,
    overtaking(ExclusiveDispatcher), overtaking(FailoverDispatcher), overtaking(KeySharedDispatcher),
    BreaksItsOrder, BreaksTheOrderOfKeys, RefusesWhoStandsBy, KeepsAllBack,
]  # fmt: skip


def harness_of(broken: type[Any]) -> type[DispatcherHarness]:
    """Return a harness that opens dispatchers of this class."""

    async def open_broken(context: DispatcherContext) -> IDispatcher:
        dispatcher: IDispatcher = broken(context.subscription) if issubclass(broken, ExclusiveDispatcher) else broken()
        return dispatcher

    return type("Broken", (DispatcherHarness,), {"provider": Provider("broken", open_broken, broken)})


@pytest.mark.parametrize(("broken", "name"), CASES)
def test_broken_dispatcher(broken: type[Any], name: str, must_fail: Callable[..., None]) -> None:
    """A dispatcher that breaks the rule fails its test."""
    must_fail(DispatcherSuite, harness_of(broken), name)


@pytest.mark.parametrize("broken", SEQUENCES)
def test_random_sequences_find_it(broken: type[Any], must_fail: Callable[..., None]) -> None:
    """Random sequences alone find most of what is broken."""
    must_fail(DispatcherSuite, harness_of(broken), "test_random_sequences", seed=1)


def test_every_test_has_teeth(every_test_has_teeth: Callable[..., None]) -> None:
    """Each test of the suite fails on some broken dispatcher."""
    every_test_has_teeth(DispatcherSuite, {name for _, name in CASES} | {"test_random_sequences"}, set())
