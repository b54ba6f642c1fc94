"""Walks through a scenario: stops it at every step, breaks every store call, and checks the result."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from crash_invariants import Invariants
from crash_scenario import Scenario
from crash_story import Story
from crash_world import COLLECTED_AFTER_MS, SETTLED_AFTER_MS, Machine, World

from txnframework.errors import TxnFrameworkError
from txnframework_simulation.simulator import CallFault, StoreCall

SEGMENTS_MAX = 100
PAUSES_EVERY = 2
LATE_MS = 3_000
"""How long the stores may take to notice the end of a process."""


@dataclass(frozen=True)
class Point:
    """
    Where one run goes wrong.

    ``step``: the victim is killed after so many of its steps in the operation; None: it lives on. ``wakes``: it is not
    killed but stands still, is taken for gone, and goes on after everything has settled and was collected. ``call``:
    the number of the store call that fails, as ``fault`` says.
    """

    step: int | None = None
    call: int | None = None
    fault: CallFault = CallFault.REPLY_LOST
    seed: int = 0
    wakes: bool = False

    def __str__(self) -> str:
        parts = [f"seed {self.seed}"]
        if self.call is not None:
            parts.append(f"call {self.call} {self.fault.value}")
        if self.step is not None:
            parts.append(f"{'stopped for long' if self.wakes else 'killed'} after step {self.step}")
        return ", ".join(parts)


@dataclass
class Walked:
    """
    What one run came to.

    ``lefts``: what a kill would leave behind, after each step of the operation; ``calls``: the store calls it made.
    """

    lefts: list[object] = field(default_factory=list)
    calls: list[StoreCall] = field(default_factory=list)

    @property
    def changing(self) -> list[int]:
        """The steps before the first one and after each that changed the stores or returned a result to a caller."""
        return [step for step, left in enumerate(self.lefts) if step == 0 or left != self.lefts[step - 1]]


class CrashPointFailed(AssertionError):
    """The state that a crash or a fault left behind, or what became of it, breaks an invariant."""


def run(scenario_class: type[Scenario], point: Point, family: str = "metadata") -> Walked:
    """Run a scenario with what goes wrong at ``point``; raise CrashPointFailed if an invariant does not hold after."""
    world = World(point.seed, family, scenario_class.reach)
    walk = _Walk(scenario_class, point, world)
    gc.disable()  # when it comes is not decided by a seed
    try:
        walk.run()
    except Exception as error:
        victim = world.machines.get("victim")
        stood = "not started" if victim is None else victim.process.last_step or victim.process.describe_last_step()
        call = f"; call {point.call} is {walk.walked.calls[point.call]}" if walk.hit else ""
        raise CrashPointFailed(
            f"{scenario_class.__name__}, {point}{call}; the victim stood at {stood}: {type(error).__name__}: {error}"
        ) from error
    finally:
        world.end()
        gc.enable()
    return walk.walked


def kills(walked: Walked, seed: int = 0, changes_only: bool = False) -> Iterator[Point]:
    """Yield a kill before the first step, after each, and after the operation was confirmed.

    ``changes_only``: only after the steps that changed the stores or returned a result to a caller. Until the next such
    step a kill leaves the same behind, and only others' memory may differ.
    """
    for step in walked.changing if changes_only else range(len(walked.lefts)):
        yield Point(step=step, seed=seed)


def pauses(walked: Walked, seed: int = 0) -> Iterator[Point]:
    """
    Yield a long pause at every second of the steps that changed the stores or returned a result to a caller.

    Where neither changed, a process that goes on finds the same as one that was paused a step earlier.
    """
    for step in walked.changing[::PAUSES_EVERY]:
        yield Point(step=step, seed=seed, wakes=True)


def faults(walked: Walked, seed: int = 0, reads_every: int | None = 1) -> Iterator[Point]:
    """
    Yield each write of the operation refused and with its reply lost, and reads refused.

    A read whose reply is lost is the same as one that is refused. ``reads_every``: which reads are refused, each (1),
    every third (3) or none of them (None).
    """
    reads = 0
    for number, call in enumerate(walked.calls):
        if call.writes:
            yield Point(call=number, fault=CallFault.REFUSED, seed=seed)
            yield Point(call=number, fault=CallFault.REPLY_LOST, seed=seed)
        elif reads_every is not None:
            if reads % reads_every == 0:
                yield Point(call=number, fault=CallFault.REFUSED, seed=seed)
            reads += 1


def combinations(walked: Walked, seeds: Iterable[int]) -> Iterator[Point]:
    """Yield, for each seed, a store call that fails and a kill some time after it, in another order of events."""
    for seed in seeds:
        chance = random.Random(seed)
        call, steps = chance.randrange(len(walked.calls)), 2 * len(walked.lefts)
        yield Point(
            chance.randrange(steps * call // len(walked.calls), steps), call, chance.choice(list(CallFault)), seed
        )


class _Walk:
    def __init__(self, scenario_class: type[Scenario], point: Point, world: World) -> None:
        self.walked = Walked()
        self.paused: asyncio.Task[None] | None = None
        self.point = point
        self.world = world
        self.story = Story(world.space)
        self.scenario = scenario_class(world, self.story)
        self.invariants = Invariants(world, self.story, self.scenario)

    @property
    def hit(self) -> bool:
        """Whether the failing call was made."""
        return self.point.call is not None and self.point.call < len(self.walked.calls)

    def run(self) -> None:
        settings = (self.scenario.transactions, self.scenario.retention)
        bystander = self.world.start("bystander", *settings)
        bystander.do(self._create_topics())
        self.invariants.observe(bystander)
        victim = self.world.start("victim", *settings)
        victim.do(self.scenario.arrange(victim.client))
        killed = self._operate(victim)
        self.invariants.check_now()
        successor = self.world.start("successor")
        self.invariants.check_outcomes(successor)
        if killed:
            successor.do(self.scenario.resume(successor.client))
        self.world.loop.advance(SETTLED_AFTER_MS)
        self.invariants.check_settled((bystander, successor), drains=successor if killed else bystander)
        self.world.loop.advance(COLLECTED_AFTER_MS)
        latecomer = self.world.start("latecomer")
        self.invariants.check_collected((bystander, latecomer))
        if self.paused is not None:
            self._wake(victim, self.paused)
            self.invariants.check_settled((bystander, latecomer), drains=latecomer)
        self.invariants.stop_observing(bystander)
        for machine in (latecomer, successor, bystander):
            machine.close()
        assert not self.world.loop.reports, f"errors that nobody was told of: {self.world.loop.reports}"

    def _operate(self, victim: Machine) -> bool:
        """Run the operation up to where it goes wrong; return whether the victim was killed."""
        before = victim.process.steps
        victim.calls.fault = self._fault
        operating = victim.spawn(self.scenario.operate(victim.client))
        last = self.point.step

        def is_over() -> bool:
            steps = victim.process.steps - before
            if last is None and steps == len(self.walked.lefts):
                self.walked.lefts.append(self._left_behind())
            return operating.done() if last is None else steps >= last or operating.done()

        self.world.loop.run_until(is_over)
        victim.calls.fault = lambda _: None
        if last is not None and self.point.wakes:
            victim.process.frozen = True
            victim.lose_leases()
            self.scenario.taken_for_gone()
            self.paused = operating
            return True
        if last is not None:
            victim.kill()
            if last % 2:
                victim.end_sessions()
            else:  # noticed late
                self.world.loop.call_later(LATE_MS / 1000, victim.end_sessions)
            return True
        error = operating.exception()
        if error is not None and not (self.hit and isinstance(error, TxnFrameworkError)):
            raise error
        victim.do(self.scenario.carry_on(victim.client, error is not None))
        victim.close()
        return False

    def _wake(self, victim: Machine, operating: asyncio.Task[None]) -> None:
        """Let a victim go on that was taken for gone: it may fail, or do what it may still do, and no damage."""
        victim.process.frozen = False
        self.world.loop.run_until(operating.done)
        error = operating.exception()
        if error is not None and not isinstance(error, TxnFrameworkError):
            raise error
        victim.close()
        self.world.loop.advance(SETTLED_AFTER_MS)

    def _left_behind(self) -> object:
        """Return the state that a kill leaves now: the space, and the results that callers received."""
        rows = self.world.space.rows
        found = [rows.find(name) for name in rows.list_names("", "", SEGMENTS_MAX)]
        ledgers = tuple((one.tail(), one.ledgers(-1, 1)) for one in found)
        return ledgers, self.story.writes, self.story.told

    def _fault(self, call: StoreCall) -> CallFault | None:
        self.walked.calls.append(call)
        return self.point.fault if len(self.walked.calls) - 1 == self.point.call else None

    async def _create_topics(self) -> None:
        for topic, segments in self.scenario.topics.items():
            await self.scenario.bystander.create_topic(topic, segments=segments)
