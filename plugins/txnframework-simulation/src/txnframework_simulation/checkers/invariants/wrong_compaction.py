"""Wrong compaction: the compacted messages lack the last message of a key, or contain a message that should be gone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from txnframework_simulation.checkers.facts import Facts, send_of
from txnframework_simulation.checkers.segments import descends
from txnframework_simulation.checkers.transactions import NEVER
from txnframework_simulation.checkers.violations import Violation, violation
from txnframework_simulation.history import (
    NULL,
    Call,
    Compact,
    DrainCompacted,
    Drained,
    DrainTopic,
    MessagePosition,
    SeenMessage,
)

NAME = "wrong compaction"
POSITION = "position"


@dataclass(frozen=True, slots=True)
class _Committed:
    """A message and the period in which it was committed, as its clients observed it."""

    seen: SeenMessage
    from_ns: int
    upto_ns: int


def check(facts: Facts) -> list[Violation]:
    """Check a history."""
    found = []
    for call in facts.calls:
        if isinstance(call.operation, DrainCompacted) and isinstance(call.reply, Drained):
            whole = _whole(facts, call)
            if whole is not None:
                found += _judge(facts, call, whole)
    return found


def _whole(facts: Facts, compacted: Call) -> Call | None:
    """Return the last full drain of the topic before its compacted messages were read."""
    assert isinstance(compacted.operation, DrainCompacted)
    topic = compacted.operation.topic
    drains = [
        call
        for call in facts.calls
        if isinstance(call.operation, DrainTopic) and call.operation.topic == topic and call.ok
    ]
    return max((call for call in drains if call.ended < compacted.began), key=lambda call: call.ended, default=None)


def _judge(facts: Facts, compacted: Call, whole: Call) -> list[Violation]:
    assert isinstance(compacted.reply, Drained)
    assert isinstance(whole.reply, Drained)
    assert isinstance(compacted.operation, DrainCompacted)
    found: list[Violation] = []
    topic = compacted.operation.topic
    places: set[MessagePosition] = set()
    for seen in compacted.reply.messages:
        if seen.place in places:
            sentence = f"{seen.value!r} at {seen.place} was returned twice when {topic} was read as it was compacted"
            found.append(violation(NAME, sentence, (compacted,)))
        places.add(seen.place)
    made = _compactions(facts, topic, compacted)
    chains: defaultdict[tuple[str, str], list[_Committed]] = defaultdict(list)
    for seen in whole.reply.messages:
        if seen.key is not None:
            chains[seen.place.segment, seen.key].append(_committed(facts, seen))
        elif seen.place not in places:
            found.append(_lacks(facts, seen, whole, compacted, made, "which has no key"))
    nulls = [one for chain in chains.values() for one in chain if one.seen.value.startswith(NULL)]
    for chain in chains.values():
        for one in chain:
            # A null may be removed together with the messages that it deletes.
            if one.seen.place in places or one in nulls or any(_deletes(null, one) for null in nulls):
                continue
            if not any(_may_replace(other, one, order) for order in _orders(made) for other in chain):
                why = f"which is the last of key {one.seen.key!r} in order of {' or '.join(sorted(_orders(made)))}"
                found.append(_lacks(facts, one.seen, whole, compacted, made, why))
    if _orders(made) == {POSITION}:
        found += _deleted_and_back(facts, compacted, chains.values(), (whole, *made))
    return found


def _deletes(null: _Committed, one: _Committed) -> bool:
    """Whether a null deletes a message: same key, in an ancestor of the null's segment."""
    return null.seen.key == one.seen.key and descends(null.seen.place.segment, one.seen.place.segment)


def _deleted_and_back(
    facts: Facts, compacted: Call, chains: Iterable[list[_Committed]], shown: tuple[Call, ...]
) -> list[Violation]:
    """Find older messages of a key whose null was removed: compaction removes a null only together with them."""
    assert isinstance(compacted.reply, Drained)
    came = {seen.place: seen for seen in compacted.reply.messages}
    found = []
    for chain in chains:
        last = max(chain, key=lambda one: one.seen.place)
        if last.seen.place in came or not last.seen.value.startswith(NULL):
            continue
        place, key = last.seen.place, last.seen.key
        for seen in came.values():
            older = seen.place.segment == place.segment or descends(place.segment, seen.place.segment)
            if seen.key == key and older:
                sends = facts.sends.get((place.topic, last.seen.value), [])
                sentence = f"{place.topic} as it was compacted has {seen.value!r} at {seen.place}, and lacks"
                sentence += f" {last.seen.value!r} at {place}, which deletes its key {key!r}"
                found.append(violation(NAME, sentence, (*sends, *shown, compacted)))
    return found


def _compactions(facts: Facts, topic: str, compacted: Call) -> list[Call]:
    """
    Return the compactions whose result the read may have returned.

    A compaction that certainly succeeded, and began after all others had ended, is the only candidate.
    """
    made = [
        call
        for call in facts.calls
        if isinstance(call.operation, Compact)
        and call.operation.topic == topic
        and call.possible
        and call.began < compacted.ended
    ]
    alone = [one for one in made if one.ok and all(other.ended < one.began for other in made if other is not one)]
    return alone[-1:] or made


def _orders(made: list[Call]) -> set[str]:
    return {call.operation.order for call in made if isinstance(call.operation, Compact)}


def _may_replace(other: _Committed, one: _Committed, order: str) -> bool:
    """Whether ``other`` may be later than ``one`` in an order; both have the same key."""
    if other.seen.place == one.seen.place:
        return False
    if order == POSITION:
        return other.seen.place > one.seen.place
    # Clocks differ. Of two messages with the same time, the one with the higher place counts.
    return other.upto_ns >= one.from_ns


def _committed(facts: Facts, seen: SeenMessage) -> _Committed:
    """Return the period in which a message was committed: from the first request to the first confirmation."""
    sends = [call for call in facts.sends.get((seen.place.topic, seen.value), ()) if send_of(call).txn == seen.txn]
    if seen.txn is None:
        asked = [call.began for call in sends]
        reported = [call.ended for call in sends if call.ok]
    else:
        transaction = facts.transactions.get(seen.txn)
        asked = [] if transaction is None else [call.began for call in transaction.commits]
        reported = [] if transaction is None else [call.ended for call in transaction.committed]
    times = facts.times_ns
    from_ns = min((times[at] for at in asked), default=0) - facts.clock_skew_ns
    upto_ns = min((times[at] for at in reported), default=NEVER) + facts.clock_skew_ns
    return _Committed(seen, from_ns, upto_ns)


def _lacks(facts: Facts, seen: SeenMessage, whole: Call, compacted: Call, made: list[Call], why: str) -> Violation:
    sends = facts.sends.get((seen.place.topic, seen.value), [])
    sentence = f"{seen.place.topic} as it was compacted lacks {seen.value!r} at {seen.place}, {why}"
    return violation(NAME, sentence, (*sends, *made, whole, compacted))
