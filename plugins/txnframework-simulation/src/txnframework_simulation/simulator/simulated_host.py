"""A simulated host: machines that replace each other in one slot."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from txnframework.errors import TxnFrameworkError
from txnframework.testing.clock import VirtualEnvironment
from txnframework_simulation.history import Event, EventKind, Recorder
from txnframework_simulation.simulator.faults import FaultInjector, FaultKind
from txnframework_simulation.simulator.machines import Machine, World
from txnframework_simulation.simulator.scenario import Scenario
from txnframework_simulation.simulator.store_calls import FaultyCalls
from txnframework_simulation.workloads import ActorContext, RecordedClient
from txnframework_simulation.workloads.workload import NEVER_EXPECTED

STEPS_MAX = 40
"""The maximum number of steps of a machine between the call at which its kill was drawn and the kill."""
UNNOTICED_MS_MAX = 4_000
"""The maximum time until the stores notice that a machine has stopped."""
DOWN_MS_MAX = 5_000
PAUSE_MS_MAX = 20_000
LIVES_MAX = 50


@dataclass(frozen=True)
class RunContext:
    """
    The objects that the hosts of a run share; ``now_ns`` and ``keep`` are the clock and the destination of recorded
    events.
    """

    scenario: Scenario
    seed: int
    world: World
    injector: FaultInjector
    now_ns: Callable[[], int]
    keep: Callable[[Event], None]


class SimulatedHost:
    """A slot in which machines run, one after the other, until ``share`` operations were recorded."""

    def __init__(self, run: RunContext, number: int, share: int) -> None:
        self.number = number
        self._machine: Machine | None = None
        self.disruptions: list[asyncio.Task[None]] = []
        self.recorder = Recorder(run.now_ns, self._keep)
        self._run = run
        self._left = share
        self._lives = 0
        self._died = asyncio.Event()

    @property
    def living(self) -> Machine | None:
        """The machine that runs now, if any."""
        return self._machine if self._machine is not None and self._machine.process.alive else None

    def more(self) -> bool:
        """Whether operations are left."""
        return self._left > 0

    async def run_machines(self) -> None:
        """Run machines until no operation is left."""
        while self.more() and self._lives < LIVES_MAX:
            self._lives += 1
            await self._run_machine(f"host{self.number}.{self._lives}")

    async def _run_machine(self, name: str) -> None:
        run = self._run
        self._died.clear()
        environment = SkewedEnvironment(run.world.environment, self._ahead_ms())
        calls = FaultyCalls(name, run.injector, run.world.loop, lambda kind: self._disrupt(machine, kind))
        machine = run.world.machine(name, environment, calls)
        opened = asyncio.Event()
        living = machine.start(run.world.config(name, run.scenario.config()), opened.set)
        await self._unless_it_died(opened.wait(), living)
        if living.done():
            error = living.exception()
            if error is not None and not _is_expected(error):
                raise error
            await machine.gone()
            await self._pass(run.injector.milliseconds(DOWN_MS_MAX))
            return
        if opened.is_set() and machine.process.alive:
            self._machine = machine
            workload = run.scenario.make_workload()
            contexts = [self._actor_context(machine, actor) for actor in range(run.scenario.actors)]
            actors = [machine.spawn(workload.run(context)) for context in contexts]
            await self._unless_it_died(asyncio.gather(*actors))
        if not machine.process.alive:
            await self._pass(run.injector.milliseconds(DOWN_MS_MAX))

    def _actor_context(self, machine: Machine, actor: int) -> ActorContext:
        name = f"{machine.name}{chr(ord('a') + actor)}"
        chance = random.Random(f"{self._run.scenario.name} {self._run.seed} {name}")  # noqa: S311 - repeatable on purpose
        recorded = RecordedClient(machine.client, self.recorder, name)
        return ActorContext(recorded, chance, machine.environment, self.more, self.number, machine.others)

    async def _unless_it_died(self, *work: Coroutine[Any, Any, Any] | asyncio.Future[Any]) -> None:
        """Wait until one of these is done or the machine is killed; raise an unexpected error."""
        waiting = [asyncio.ensure_future(one) for one in (self._died.wait(), *work)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if self._died.is_set():
            return
        for one in waiting[1:]:
            if one.done() and not _is_expected(one.exception()):
                one.result()

    # -- faults of the machine ------------------------------------------------------------------------------

    def _disrupt(self, machine: Machine, kind: FaultKind) -> None:
        work = {
            FaultKind.KILLED: self._kill,
            FaultKind.PAUSED: self._pause,
            FaultKind.LEASES_LOST: self._lose_leases,
            FaultKind.CLOCK_MOVED: self._move_clock,
        }[kind]
        self.disruptions.append(self._run.world.loop.spawn(self._run.world.loop.outside, work(machine)))

    async def _kill(self, machine: Machine) -> None:
        for _ in range(self._run.injector.steps(STEPS_MAX)):
            await asyncio.sleep(0)
        if not machine.process.alive:
            return
        machine.kill()
        self._died.set()
        await self._pass(self._run.injector.milliseconds(UNNOTICED_MS_MAX))
        await machine.gone()

    async def _pause(self, machine: Machine) -> None:
        injector = self._run.injector
        pause_ms = injector.milliseconds(PAUSE_MS_MAX)
        machine.process.frozen = True
        if injector.likely(0.5):
            noticed_ms = injector.milliseconds(UNNOTICED_MS_MAX)
            await self._pass(noticed_ms)
            await machine.lose_leases_now()
        await self._pass(pause_ms)
        machine.process.frozen = False

    async def _lose_leases(self, machine: Machine) -> None:
        await machine.lose_leases_now()

    async def _move_clock(self, machine: Machine) -> None:
        if isinstance(machine.environment, SkewedEnvironment):
            machine.environment.ahead_ms = self._ahead_ms()

    def _ahead_ms(self) -> int:
        half_ms = self._run.scenario.config().transactions.max_clock_skew_ms // 2
        return self._run.injector.between(-half_ms, half_ms)

    async def _pass(self, by_ms: int) -> None:
        environment = self._run.world.environment
        await environment.sleep_until(environment.now_ms() + by_ms)

    def _keep(self, event: Event) -> None:
        self._left -= event.kind is EventKind.INVOKE
        self._run.keep(event)


def _is_expected(error: BaseException | None) -> bool:
    """Return whether faults may have caused it."""
    return isinstance(error, TxnFrameworkError) and not isinstance(error, NEVER_EXPECTED)


class SkewedEnvironment:
    """An environment whose clock is ahead of the world's by ``ahead_ms``, or behind it."""

    def __init__(self, world: VirtualEnvironment, ahead_ms: int = 0) -> None:
        self.ahead_ms = ahead_ms
        self._world = world

    def now_ms(self) -> int:
        """Return the time of this machine's clock."""
        return self._world.now_ms() + self.ahead_ms

    async def sleep_until(self, at_ms: int) -> None:
        """Return when this clock has reached ``at_ms``, even if it is moved during the wait."""
        while True:
            await self._world.sleep_until(at_ms - self.ahead_ms)
            if self.now_ms() >= at_ms:
                return

    def monotonic_ms(self) -> int:
        """Return the time of the world: the clock of this machine may be set, its monotonic clock may not."""
        return self._world.monotonic_ms()

    async def sleep(self, duration_ms: int) -> None:
        """Return when ``duration_ms`` have passed in the world."""
        await self._world.sleep(duration_ms)

    def random_bits(self, count: int) -> int:
        """Return bits from the world's seeded source."""
        return self._world.random_bits(count)

    def process_name(self, client: str = "") -> str:
        """Return the name of the world's process, which is the same in every run."""
        return self._world.process_name(client)
