"""Dispatchers with any number of active consumers: ``shared`` and ``key_shared``."""

from __future__ import annotations

from dataclasses import dataclass, field

from zope.interface import implementer

from txnframework.interfaces import IDispatcher
from txnframework.model.dispatch import Assignment, Candidate, ConsumerInfo, Ordering
from txnframework.model.key_hashes import key_hash
from txnframework.model.positions import Position
from txnframework.plugin import DispatcherContext
from txnframework_dispatchers._consumers import AttachedConsumer, ConsumerDispatcher, RoundRobin


@implementer(IDispatcher)
class SharedDispatcher(ConsumerDispatcher):
    """
    Assigns messages in turn to the consumers that have permits and the lowest priority number among these.

    Each message is assigned to one consumer at a time; the order in which messages are processed is not defined.
    """

    subscription_type: str = "shared"
    ordering: Ordering = Ordering.NONE
    stands_by: bool = False

    def __init__(self) -> None:
        super().__init__()
        self._round_robin = RoundRobin()

    def assign(self, waiting: tuple[Candidate, ...]) -> tuple[Assignment, ...]:
        """Assign messages while any consumer has permits."""
        assigned = []
        able = self._able()
        for candidate in waiting:
            attached = self._round_robin.next(able)
            if attached is None:
                break
            assigned.append(attached.take(candidate))
            if attached.permits <= 0:
                able = self._able()
        return tuple(assigned)

    def _able(self) -> list[AttachedConsumer]:
        """Return the consumers with the lowest priority number among those that have permits."""
        able = [one for one in self._consumers.values() if one.permits > 0]
        first = min((one.info.priority for one in able), default=0)
        return [one for one in able if one.info.priority == first]


async def open_shared(_: DispatcherContext) -> IDispatcher:
    """Create the dispatcher of one subscription on one segment."""
    return SharedDispatcher()


@dataclass(slots=True)
class _AssignedKey:
    """A key with outstanding messages: their positions, and the consumer that has them."""

    consumer_id: int
    positions: set[Position] = field(default_factory=set)


@implementer(IDispatcher)
class KeySharedDispatcher(ConsumerDispatcher):
    """
    Assigns all messages of a key to one consumer while any message of that key is outstanding.

    A free key is assigned to one of the consumers with permits: the one whose name together with the key has the
    highest hash. That is the same consumer as before, unless it left or has no permits. When a consumer attaches or
    leaves, the keys of the others do not move. Messages without a key are assigned in turn. Only keys with outstanding
    messages are remembered.

    A waiting key holds back only its own messages, as far as the broker reads ahead.
    """

    subscription_type: str = "key_shared"
    ordering: Ordering = Ordering.KEY
    stands_by: bool = False

    def __init__(self) -> None:
        super().__init__()
        self._assigned: dict[bytes, _AssignedKey] = {}
        self._key_at: dict[Position, bytes] = {}
        self._round_robin = RoundRobin()

    def assign(self, waiting: tuple[Candidate, ...]) -> tuple[Assignment, ...]:
        """
        Assign the messages that the consumer of each key can take.

        If a message of a key waits, later messages of the key wait too.
        """
        assigned: list[Assignment] = []
        blocked: set[bytes] = set()
        able = sum(max(0, one.permits) for one in self._consumers.values())
        for candidate in waiting:
            if len(assigned) == able:
                break
            if candidate.key is not None and candidate.key in blocked:
                continue
            receiver = self._receiver(candidate.key)
            if receiver is not None:
                assigned.append(self._assign_to(candidate, receiver))
            elif candidate.key is not None:
                blocked.add(candidate.key)
        return tuple(assigned)

    def released(self, positions: frozenset[Position]) -> None:
        """Forget which consumer had these messages; a key without outstanding messages is free."""
        super().released(positions)
        for position in positions:
            key = self._key_at.pop(position, None)
            if key is None:
                continue
            assigned = self._assigned[key]
            assigned.positions.discard(position)
            if not assigned.positions:
                del self._assigned[key]

    def _receiver(self, key: bytes | None) -> AttachedConsumer | None:
        consumers = self._consumers
        if key is None:
            return self._round_robin.next(consumers.values())
        assigned = self._assigned.get(key)
        if assigned is not None:
            holder = consumers.get(assigned.consumer_id)
            return holder if holder is not None and holder.permits > 0 else None
        able = (one for one in consumers.values() if one.permits > 0)
        return max(able, key=lambda one: _weight(one.info, key), default=None)

    def _assign_to(self, candidate: Candidate, receiver: AttachedConsumer) -> Assignment:
        if candidate.key is not None:
            assigned = self._assigned.setdefault(candidate.key, _AssignedKey(receiver.info.consumer_id))
            assigned.positions.add(candidate.position)
            self._key_at[candidate.position] = candidate.key
        return receiver.take(candidate)


def _weight(consumer: ConsumerInfo, key: bytes) -> tuple[int, int]:
    """Return the weight of a consumer for a key: a hash of its name and the key, then one of its id and the key."""
    number = consumer.consumer_id.to_bytes(8, "little")
    return key_hash(consumer.name.encode() + b"\0" + key), key_hash(number + key)


async def open_key_shared(_: DispatcherContext) -> IDispatcher:
    """Create the dispatcher of one subscription on one segment."""
    return KeySharedDispatcher()
