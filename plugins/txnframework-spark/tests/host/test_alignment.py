"""A backlog of unequal segments is read so that a watermark of the data's own disorder drops nothing.

Watermarks and windows are plain Python here; ``tests/recovery`` lets Spark drop what it drops.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from txnframework.broker import Host
from txnframework.model.entries import EntryMessage, encode_entry
from txnframework.model.key_hashes import key_hash
from txnframework.model.layout import SegmentState
from txnframework.model.ledger import Append
from txnframework.model.names import TopicName
from txnframework.testing import VirtualEnvironment
from txnframework_spark.errors import DataLost

Play = Callable[..., None]
TOPIC = TopicName.parse("in")
KEYS = [f"key {number}" for number in range(12)]
WEIGHTS = [1 / (number + 1) ** 1.5 for number in range(len(KEYS))]


@dataclass
class Feed:
    """Events in about the order of their numbers, most of them of few keys; a number is its event's time as well.

    Each segment's events are stored when some of them wait there, or when the first of them has waited for long.
    """

    host: Host
    clock: VirtualEnvironment
    chance: random.Random
    stored: list[tuple[int, int]] = field(default_factory=list)
    _next: int = 0
    _waiting: dict[str, list[int]] = field(default_factory=dict)

    async def publish(self, count: int) -> None:
        """Publish so many events."""
        for _ in range(count):
            key = self.chance.choices(KEYS, WEIGHTS)[0]
            layout = await self.host.topics.finish_changes(TOPIC)
            name = str(layout.name_of(layout.route(key_hash(key.encode())).id))
            number = max(0, self._next + self.chance.randint(-5, 5))
            self._next += 1
            self._waiting.setdefault(name, []).append(number)
            # Often in one moment: a bulk writer stores much in a millisecond.
            self.clock.move_to(self.clock.now_ms() + self.chance.choice((0, 0, 0, 1, 3)))
            for one, waiting in list(self._waiting.items()):
                if len(waiting) >= 7 or self._next - waiting[0] > 40:
                    await self._store(one)
        for name in list(self._waiting):
            await self._store(name)

    async def _store(self, name: str) -> None:
        numbers = self._waiting.pop(name)
        messages = [EntryMessage(None, str(number).encode(), (), at, 0) for at, number in enumerate(numbers)]
        data = encode_entry(messages, "feed", None)
        await (await self.host.segment(name)).buffer.append((Append(data, len(messages)),))
        self.stored += [(self.clock.now_ms(), number) for number in numbers]

    def disorder(self) -> int:
        """Return how far behind an event stored before, or in the same moment, one was stored at most."""
        found = latest = 0
        for at_ms, number in sorted(self.stored, key=lambda one: (one[0], -one[1])):
            assert at_ms >= 0
            latest = max(latest, number)
            found = max(found, latest - number)
        return found

    async def change(self) -> None:
        """Split a segment, or merge two."""
        active = (await self.host.topics.finish_changes(TOPIC)).active()
        self.clock.move_to(self.clock.now_ms() + self.chance.choice((0, 1)))
        if len(active) < 6 and self.chance.random() < 0.7:
            await self.host.topics.split(TOPIC, self.chance.choice(active).id)
        elif len(active) > 1:
            at = self.chance.randrange(len(active) - 1)
            await self.host.topics.merge(TOPIC, active[at].id, active[at + 1].id)


@dataclass
class Watermark:
    """What an aggregation over windows behind a watermark of ``delay`` makes of batches."""

    delay: int
    kept: Counter[int] = field(default_factory=Counter)
    late: list[int] = field(default_factory=list)
    _mark: int = -1
    _latest: int = 0

    def batch(self, numbers: list[int]) -> None:
        """Drop what is before the mark; the mark moves behind a batch, as Spark's does."""
        self.late += [number for number in numbers if number < self._mark]
        self.kept += Counter(number for number in numbers if number >= self._mark)
        self._latest = max([self._latest, *numbers])
        self._mark = self._latest - self.delay


def played(play: Play, seed: int, source: dict[str, str], changes: int, live: bool = False) -> tuple[Watermark, Feed]:
    """Publish a backlog of about 1,500 events over four segments and read it; ``live``: more comes meanwhile."""
    chance, clock = random.Random(seed), VirtualEnvironment(seed)
    found: list[tuple[Watermark, Feed]] = []

    async def scenario(world: object) -> None:
        feed = Feed(world.host, clock, chance)  # type: ignore[attr-defined]
        for _ in range(changes + 1):
            await feed.publish(1_500 // (changes + 1))
            if changes:
                await feed.change()
        await feed.publish(100)
        messages_max = int(source.get("maxOffsetsPerTrigger", "0")) or None
        given = {"subscribe": "in", "startingOffsets": "earliest", **source}
        run, offset, batches = await world.run(source=given), None, []  # type: ignore[attr-defined]
        while True:
            start, end = await run.plan(offset, messages_max)
            if start == end:
                break
            batches.append([int(value) for value in await run.read(len(batches), start, end)])
            offset = end.to_json()
            if live and len(batches) < 20:
                await feed.publish(30)
                if len(batches) % 4 == 0:
                    await feed.change()
            if chance.random() < 0.2:
                run = await world.run(source=given)  # type: ignore[attr-defined]
        mark = Watermark(feed.disorder())
        for numbers in batches:
            mark.batch(numbers)
        if messages_max is not None:
            assert max(map(len, batches)) <= messages_max + 7 * 8
        found.append((mark, feed))

    play(scenario, segments=4, environment=clock)
    return found[0]


@pytest.mark.parametrize("changes", [0, 3])
@pytest.mark.parametrize("source", [{}, {"maxOffsetsPerTrigger": "60"}, {"maxOffsetsPerTrigger": "300"}])
@pytest.mark.parametrize("seed", range(4))
def test_a_watermark_of_the_data_s_own_disorder_drops_nothing(
    play: Play, seed: int, source: dict[str, str], changes: int
) -> None:
    """However unequal the segments are, whatever splits and merges lie in the backlog, and across restarts."""
    mark, feed = played(play, seed, source, changes)
    assert mark.late == []
    assert mark.kept == Counter(number for _, number in feed.stored)


@pytest.mark.parametrize("seed", range(4))
def test_it_drops_nothing_while_more_comes_and_segments_change(play: Play, seed: int) -> None:
    """What comes meanwhile is read when the backlog is, and so are children that appear meanwhile."""
    mark, feed = played(play, seed, {"maxOffsetsPerTrigger": "100"}, 2, live=True)
    assert mark.late == []
    assert mark.kept == Counter(number for _, number in feed.stored)


def test_without_alignment_a_batch_is_shared_by_what_waits(play: Play) -> None:
    """As the option says: each segment gives in proportion to its own backlog, not each the same."""

    async def scenario(world: object) -> None:
        feed = Feed(world.host, VirtualEnvironment(), random.Random(1))  # type: ignore[attr-defined]
        await feed.publish(3_000)
        given = {"subscribe": "in", "startingOffsets": "earliest", "alignSegments": "false"}
        run = await world.run(source=given)  # type: ignore[attr-defined]
        start, end = await run.plan(None, 300)
        taken = [
            (before.at, end.frontier[str(TOPIC)][name].at, name) for name, before in start.frontier[str(TOPIC)].items()
        ]
        backlog = run.planner.admission._backlog
        parts = []
        for before, upto, name in taken:
            whole = (await run.host.segment(name)).ledger
            all_of_it = (await backlog.count(name, before, (await whole.tail()).last_confirmed)).messages
            parts.append((await backlog.count(name, before, upto)).messages / all_of_it)
        assert all(0.07 < part < 0.13 for part in parts), parts

    play(scenario, segments=4)


@pytest.mark.parametrize("aligned", ["true", "false"])
@pytest.mark.parametrize("more", [(), ("z",)])
def test_what_was_counted_and_then_trimmed_unread_is_not_waited_for(
    play: Play, aligned: str, more: tuple[str, ...]
) -> None:
    """The next batch goes over it, so that its tasks say that it is lost."""

    async def scenario(world: Any) -> None:
        given = {"subscribe": "in", "startingOffsets": "earliest", "alignSegments": aligned}
        run = await world.run(source=given)
        await world.publish(*(f"a{number}" for number in range(30)))
        start, end = await run.plan(None, 5)
        assert len(await run.read(0, start, end)) == 5
        segment = await world.host.segment("segment://public/default/in/0000-ffff-0")
        open_ledger_id = (await segment.ledger.roll()).open_ledger_id
        await segment.buffer.trim(open_ledger_id)
        await world.publish(*more)
        start, end = await run.plan(end.to_json(), 5)
        assert start != end
        with pytest.raises(DataLost):
            await run.read(1, start, end)
        lenient = await world.run(source={**given, "failOnDataLoss": "false"})
        assert await lenient.read(1, start, end) == list(more)
        # What was lost does not count among what waits any more.
        await world.publish("b")
        start, end = await run.plan(end.to_json(), 5)
        assert await run.read(2, start, end) == ["b"]
        (known,) = run.planner.admission._backlog._known.values()
        assert known.messages == 0

    play(scenario)


def test_a_topic_is_split_and_its_parent_is_read_before_others_go_on(play: Play) -> None:
    """Without a limit too: what the children hold is older than what their neighbours got since."""

    async def scenario(world: object) -> None:
        host = world.host  # type: ignore[attr-defined]
        feed = Feed(host, world.environment, random.Random(1))  # type: ignore[attr-defined]
        await feed.publish(200)
        layout = await host.topics.layout(TOPIC)
        assert all(one.state is SegmentState.ACTIVE for one in layout.active())
        await host.topics.split(TOPIC, layout.active()[0].id)
        parents_end = world.environment.now_ms()  # type: ignore[attr-defined]
        await feed.publish(200)
        run = await world.run(source={"subscribe": "in", "startingOffsets": "earliest"})  # type: ignore[attr-defined]
        start, end = await run.plan(None)
        first = sorted(int(value) for value in await run.read(0, start, end))
        assert first == sorted(number for at_ms, number in feed.stored if at_ms <= parents_end)
        start, end = await run.plan(end.to_json())
        second = sorted(int(value) for value in await run.read(1, start, end))
        assert sorted(first + second) == sorted(number for _, number in feed.stored)

    play(scenario, segments=2, environment=VirtualEnvironment())
