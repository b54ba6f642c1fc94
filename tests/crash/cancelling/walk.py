"""Runs a story up to a step, cancels the call there in one of several ways, and checks the invariants."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from cancelling.stage import Stage
from cancelling.stories import Story
from txnframework.errors import TxnFrameworkError

NEVER = 10**9
"""More steps than any story has."""
LAST_STEPS = 3
"""At the end, the request has taken effect and its caller has not been notified."""


class Way(Enum):
    """How a call is cancelled."""

    CANCELLED = "cancelled"
    TWICE = "cancelled twice"
    TIMEOUT = "timed out"
    CLOSED = "closed the client"


@dataclass(frozen=True)
class Point:
    """One way of giving a call up after ``step`` steps of its process; ``at_once``: it is repeated before anything."""

    way: Way
    step: int
    at_once: bool = False

    def __str__(self) -> str:
        return f"{self.way.value} after step {self.step}{', repeated at once' if self.at_once else ''}"


class NotWhole(AssertionError):
    """A cancelled call left something behind that no process finishes or undoes."""


def run(story: Story, family: str, point: Point, sweeps: bool = True) -> int:
    """Run a story up to a point; return after how many steps that was. ``sweeps``: as the stage's."""
    stage = Stage(family, sweeps)
    gc.disable()  # when it comes is not decided by a seed
    try:
        return _Telling(story, stage, point).tell()
    except (Exception, asyncio.CancelledError) as error:
        raise NotWhole(f"{story.name}, {family}, {point}: {type(error).__name__}: {error}") from error
    finally:
        stage.world.end()
        gc.enable()


def walk(story: Story, family: str, way: Way, skipping: int | None = None, sweeps: bool = True) -> Iterator[Point]:
    """
    Run a story to its end, and then up to each of its steps; yield what was run.

    ``skipping``: only a sample, of the first steps, of the last ones, and fewer of those between: one more is left out
    after each ``skipping`` steps.
    """
    whole = Point(way, NEVER)
    steps = run(story, family, whole, sweeps)
    yield whole
    for number, step in enumerate(range(steps) if skipping is None else _sample(steps, skipping)):
        point = Point(way, step, at_once=bool(number % 2))
        run(story, family, point, sweeps)
        yield point


def _sample(steps: int, skipping: int) -> list[int]:
    found, step = {steps - 1 - before for before in range(LAST_STEPS)}, 0
    while step < steps:
        found.add(step)
        step += 1 + step // skipping
    return sorted(step for step in found if step >= 0)


class _Telling:
    def __init__(self, story: Story, stage: Stage, point: Point) -> None:
        self.story = story
        self.stage = stage
        self.point = point
        self.begun = False

    def tell(self) -> int:
        story, stage = self.story, self.stage
        stage.victim.do(stage.prepare())
        stage.victim.do(story.arrange(stage))
        story.may_happen(stage)
        before = stage.victim.process.steps
        bell: list[asyncio.Timeout] = []
        calling = stage.victim.spawn(self._call(bell))
        stage.loop.run_until(lambda: calling.done() or stage.victim.process.steps - before >= self.point.step)
        steps = stage.victim.process.steps - before
        if self.point.way is Way.CLOSED:
            self._close_under(calling)
            if not (stage.sweeps or self.begun):
                return steps  # transactions that were not ended are open until the next sweep
            stage.other_machine.do(story.check_soon(stage))
        else:
            self._give_up(calling, bell)
            self._look_in_the_same_process()
        self._look_from_outside()
        return steps

    async def _call(self, bell: list[asyncio.Timeout]) -> None:
        self.begun = True
        if self.point.way is Way.TIMEOUT:
            async with asyncio.timeout(None) as timeout:
                bell.append(timeout)
                await self.story.call(self.stage)
        else:
            await self.story.call(self.stage)

    # -- giving up ------------------------------------------------------------------------------------

    def _give_up(self, calling: asyncio.Task[None], bell: list[asyncio.Timeout]) -> None:
        loop = self.stage.loop
        if self.point.way is Way.TIMEOUT and bell and not calling.done():
            with loop._running():
                bell[0].reschedule(loop.time())
        else:
            calling.cancel()
        if self.point.way is Way.TWICE:
            loop.step()
            calling.cancel()
        since_ms = self.stage.loop.environment.now_ms()
        loop.run_until(calling.done)
        waited_ms = self.stage.loop.environment.now_ms() - since_ms
        assert waited_ms <= 100, f"the caller was held for {waited_ms} ms"
        if calling.cancelled():
            return
        error = calling.exception()
        if isinstance(error, TimeoutError) and self.point.way is Way.TIMEOUT:
            return
        if error is not None:
            raise error

    def _close_under(self, calling: asyncio.Task[None]) -> None:
        stage = self.stage
        since_ms = stage.loop.environment.now_ms()
        living = stage.victim.ask_to_close()
        stage.loop.run_until(living.done)
        living.result()
        stage.loop.run_until(calling.done)
        error = None if calling.cancelled() else calling.exception()
        if error is not None and not isinstance(error, TxnFrameworkError):
            raise error
        stage.check_closed(stage.victim, since_ms)

    # -- looking --------------------------------------------------------------------------------------

    def _look_in_the_same_process(self) -> None:
        story, stage = self.story, self.stage
        if self.begun and not self.point.at_once:
            stage.other_machine.do(story.check_soon(stage))
            if not story.leaves_open:
                stage.other_machine.do(story.check_visible(stage, b"soon"))
        stage.victim.do(story.repeat(stage))
        story.has_happened(stage)
        stage.victim.do(story.leave(stage))
        stage.victim.do(story.check_subscription(stage, stage.client, at_once=True))
        stage.other_machine.do(story.check_subscription(stage, stage.other, at_once=False))
        stage.check_leases()
        since_ms = stage.loop.environment.now_ms()
        stage.victim.close()
        stage.check_closed(stage.victim, since_ms)

    def _look_from_outside(self) -> None:
        story, stage = self.story, self.stage
        stage.other_machine.do(story.check_visible(stage, b"behind"))
        stage.other_machine.do(story.check(stage))
        if self.point.way is Way.CLOSED:  # otherwise it was looked at while the victim lived
            stage.other_machine.do(story.check_subscription(stage, stage.other, at_once=False))
        stage.check_leases()
        stage.other_machine.close()
        stage.end()
