"""Consumers share the keys."""

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
    """A key with outstanding messages: which they are, and whose."""

    consumer_id: int
    positions: set[Position] = field(default_factory=set)


@implementer(IDispatcher)
class KeySharedDispatcher:
    """
    Gives the messages of one key to one consumer, as long as something of that key is outstanding.

    A key that is free goes, among the consumers with permits, to the one whose name together with the key has the
    highest hash: the same one as before, unless it left or can take no more; when one attaches or leaves, the others
    keep their keys. Messages without a key go round in turn. Only keys with outstanding messages are remembered.

    A key that has to wait holds up nothing but itself, as far as the broker reads ahead.
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
        """Add a consumer; any number may be there."""
        self._consumers.add(consumer)

    def detach(self, consumer_id: int) -> frozenset[Position]:
        """Remove it; return what it held; its keys wait until that is released."""
        return self._consumers.remove(consumer_id)

    def permit(self, consumer_id: int, messages: int) -> None:
        """Let it take that many more."""
        self._consumers.permit(consumer_id, messages)

    def assign(self, waiting: tuple[Candidate, ...]) -> tuple[Assignment, ...]:
        """Assign what its key's consumer can take; behind a message that waits, those of its key wait too."""
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
        """Forget who had these; a key of which nothing is left is free."""
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
    """Return how much a consumer and a key belong together: by its name, and among those of one name by its id."""
    number = consumer.consumer_id.to_bytes(8, "little")
    return key_hash(consumer.name.encode() + b"\0" + key), key_hash(number + key)


async def open_key_shared(_: DispatcherContext) -> IDispatcher:
    """Make the dispatcher of one subscription on one segment."""
    return KeySharedDispatcher()
