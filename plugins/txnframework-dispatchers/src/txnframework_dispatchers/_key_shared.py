"""The ``key_shared`` dispatcher: consumers share the keys."""

from __future__ import annotations

from dataclasses import dataclass, field

from zope.interface import implementer

from txnframework.interfaces import IDispatcher
from txnframework.model.dispatching import Assignment, Candidate, ConsumerInfo, Ordering
from txnframework.model.hashing import key_hash
from txnframework.model.positions import Position
from txnframework.plugin import DispatcherContext
from txnframework_dispatchers._permits import Attached, Consumers
from txnframework_dispatchers._turns import Turns


@dataclass(slots=True)
class _Held:
    """A key with outstanding messages: their positions, and the consumer that has them."""

    consumer_id: int
    positions: set[Position] = field(default_factory=set)


@implementer(IDispatcher)
class KeySharedDispatcher:
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
        self._consumers = Consumers()
        self._held: dict[bytes, _Held] = {}
        self._key_at: dict[Position, bytes] = {}
        self._turns = Turns()

    def attach(self, consumer: ConsumerInfo) -> None:
        """Add a consumer; any number may be attached."""
        self._consumers.add(consumer)

    def detach(self, consumer_id: int) -> frozenset[Position]:
        """Remove a consumer; return its outstanding messages. Their keys wait until these are released."""
        return self._consumers.remove(consumer_id)

    def permit(self, consumer_id: int, messages: int) -> None:
        """Let the consumer take ``messages`` more."""
        self._consumers.permit(consumer_id, messages)

    def assign(self, waiting: tuple[Candidate, ...]) -> tuple[Assignment, ...]:
        """Assign what each key's consumer can take; later messages of a waiting key wait too."""
        assigned: list[Assignment] = []
        held_up: set[bytes] = set()
        able = sum(max(0, one.permits) for one in self._consumers.by_id.values())
        for candidate in waiting:
            if len(assigned) == able:
                break
            if candidate.key is not None and candidate.key in held_up:
                continue
            taker = self._taker(candidate.key)
            if taker is not None:
                assigned.append(self._give(candidate, taker))
            elif candidate.key is not None:
                held_up.add(candidate.key)
        return tuple(assigned)

    def released(self, positions: frozenset[Position]) -> None:
        """Forget which consumer had these messages; a key without outstanding messages is free."""
        self._consumers.release(positions)
        for position in positions:
            key = self._key_at.pop(position, None)
            if key is None:
                continue
            held = self._held[key]
            held.positions.discard(position)
            if not held.positions:
                del self._held[key]

    def _taker(self, key: bytes | None) -> Attached | None:
        consumers = self._consumers.by_id
        if key is None:
            return self._turns.next(consumers.values())
        held = self._held.get(key)
        if held is not None:
            holder = consumers.get(held.consumer_id)
            return holder if holder is not None and holder.permits > 0 else None
        able = (one for one in consumers.values() if one.permits > 0)
        return max(able, key=lambda one: _weight(one.info, key), default=None)

    def _give(self, candidate: Candidate, taker: Attached) -> Assignment:
        if candidate.key is not None:
            held = self._held.setdefault(candidate.key, _Held(taker.info.consumer_id))
            held.positions.add(candidate.position)
            self._key_at[candidate.position] = candidate.key
        return taker.take(candidate)


def _weight(consumer: ConsumerInfo, key: bytes) -> tuple[int, int]:
    """Return the weight of a consumer for a key: a hash of its name and the key, then one of its id and the key."""
    number = consumer.consumer_id.to_bytes(8, "little")
    return key_hash(consumer.name.encode() + b"\0" + key), key_hash(number + key)


async def open_key_shared(_: DispatcherContext) -> IDispatcher:
    """Create the dispatcher of one subscription on one segment."""
    return KeySharedDispatcher()
