"""One run: a scenario under one seed, from an empty store to a checked history."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import random
import traceback
from collections.abc import Coroutine, Iterable, Sequence
from itertools import count
from typing import Any

import msgspec

from txnframework.model import Reach
from txnframework.testing.clock import VirtualEnvironment
from txnframework_simulation.checkers import Violation, check
from txnframework_simulation.checkers.facts import CLOCK_SKEW_MS
from txnframework_simulation.history import UNNAMED, Begun, Event, EventKind, History, Recorder
from txnframework_simulation.simulator.faults import FaultInjector
from txnframework_simulation.simulator.isolation import IsolationError
from txnframework_simulation.simulator.loop import SimulatedLoop, Stuck
from txnframework_simulation.simulator.machines import Machine, World, registry
from txnframework_simulation.simulator.results import Limits, RunResult
from txnframework_simulation.simulator.scenario import Scenario
from txnframework_simulation.simulator.simulated_host import RunContext, SimulatedHost
from txnframework_simulation.workloads import ActorContext, RecordedClient, drain
from txnframework_simulation.workloads.drain import drain_subscription, drain_topic, write_everywhere

NO_LIMITS = Limits()
FAULT_SEED = "misfortunes"
"""Part of the random seed of the faults; another text would change the run of every seed."""
WORK_MS_MAX = 1_800_000
"""The virtual time in which all hosts must complete their operations."""
DRAIN_MS_MAX = 300_000


def run(scenario: Scenario, seed: int, limits: Limits = NO_LIMITS) -> RunResult:
    """Run a scenario; with the same seed and limits, every step of the run is the same."""
    collecting = gc.isenabled()
    gc.disable()  # the time of a collection does not depend on the seed
    try:
        return Run(scenario, seed, limits).run()
    finally:
        if collecting:
            gc.enable()


class Run:
    """One run, in phases: prepare, work, settle, drain, check."""

    def __init__(self, scenario: Scenario, seed: int, limits: Limits) -> None:
        self.scenario = scenario
        self.seed = seed
        self.limits = limits
        skew_ms = scenario.config().transactions.max_clock_skew_ms
        self.history = History(about={"scenario": scenario.name, "seed": str(seed), CLOCK_SKEW_MS: str(skew_ms)})
        self.operations = 0
        self._over = False
        self.violations: list[Violation] = []
        name = f"{scenario.name} {seed}"
        self.chance = random.Random(f"{name} run")  # noqa: S311 - repeatable on purpose
        self.loop = SimulatedLoop(VirtualEnvironment(seed), seed)
        self.environment = self.loop.environment
        self.began_ms = self.environment.now_ms()
        self.recorder = Recorder(self.now_ns, self.keep)
        self.injector = FaultInjector(scenario.faults, f"{name} {FAULT_SEED}", self.environment.now_ms, limits.only)
        space, *others = [scenario.make_space(self.environment) for _ in range(scenario.deployments)]
        # Half of the runs settle transactions as they end, and half afterwards.
        reach = {0: Reach.DATABASE, 2: Reach.STORE}.get(seed % 4, Reach.PARTITION)
        self.world = World(
            self.loop,
            space,
            registry(),
            _at_once,
            reach=reach,
            others=others,
        )
        self._context = RunContext(scenario, seed, self.world, self.injector, self.now_ns, self.keep)
        self.workload = scenario.make_workload()
        self._numbers = count()

    def run(self) -> RunResult:
        """Run all phases, and check the history."""
        try:
            self._all_phases()
        except Stuck as error:
            self._violated("every call ends", str(error))
        except (Exception, IsolationError) as error:
            self._violated("no unexpected error", _described(error))
        else:
            self._over = True
            self.violations += check(self.history)
            self.violations += self.workload.violations(self.history)
        finally:
            self._over = True
            self.world.end()
        return self._result()

    def _all_phases(self) -> None:
        self._prepare()
        hosts = self._work()
        self._settle(hosts)
        self._drain()
        for report in self.loop.reports:
            error = report.get("exception")
            text = report.get("message", "") if error is None else _described(error)
            self._violated("no unhandled error", text)

    # -- phases ---------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        first = self._quiet_machine("first")
        first.do(self.workload.prepare(RecordedClient(first.client, self.recorder, "first")))
        first.close()

    def _work(self) -> list[SimulatedHost]:
        operations = self.scenario.operations if self.limits.operations is None else self.limits.operations
        hosts = [
            SimulatedHost(self._context, number, -(-operations // self.scenario.hosts))
            for number in range(self.scenario.hosts)
        ]
        working = [self._outside(host.run_machines()) for host in hosts]
        self._finish_all(working)
        self.injector.over = True
        for host in hosts:
            self._finish_all(host.disruptions)
        return hosts

    def _settle(self, hosts: Iterable[SimulatedHost]) -> None:
        living = [one for host in hosts if (one := host.living) is not None]
        # Open transactions end only if a host with coordinators sweeps.
        sweeping = living or [self._quiet_machine("keeper")]
        for machine in sweeping:
            for client in (machine.client, *machine.others):
                self._finished(machine.spawn(client.host.coordinators()))
        self.loop.advance(self.scenario.settle_ms)
        joined = self.chance.choice(sweeping)
        restoring = RecordedClient(joined.client, self.recorder, f"{joined.name}.restoring")
        self._finished(joined.spawn(self.workload.restore(restoring)))
        for machine in sweeping:
            recorded = RecordedClient(machine.client, self.recorder, f"{machine.name}.late")
            for topic in self.workload.topics:
                self._finished(machine.spawn(drain_topic(recorded, topic)))
            # A consumer that joins later in the same process receives all messages.
            for subscribed in self.workload.subscriptions if machine is joined else ():
                self._finished(machine.spawn(drain_subscription(recorded, subscribed)))
            self._finished(machine.ask_to_close())

    def _drain(self) -> None:
        last = self._quiet_machine("last")
        begun = tuple(dict.fromkeys(one.reply.txn for one in self.history.events if isinstance(one.reply, Begun)))
        begun = tuple(txn for txn in begun if not txn.startswith(UNNAMED))
        recorded = RecordedClient(last.client, self.recorder, "last")
        for topic in self.workload.topics:
            self._finished(last.spawn(write_everywhere(recorded, topic)))
        self._finished(last.spawn(self.workload.finish(self._last_context(last))))
        self._finished(last.spawn(drain(recorded, self.workload, begun)))
        self._finished(last.ask_to_close())

    # -- steps ----------------------------------------------------------------------------------------

    def _last_context(self, machine: Machine) -> ActorContext:
        chance = random.Random(f"{self.scenario.name} {self.seed} {machine.name}")  # noqa: S311 - repeatable on purpose
        recorded = RecordedClient(machine.client, self.recorder, f"{machine.name}.finishing")
        return ActorContext(recorded, chance, machine.environment, lambda: True, others=machine.others)

    def _quiet_machine(self, name: str) -> Machine:
        machine = self.world.machine(name)
        machine.open(self.world.config(name, self.scenario.config()))
        return machine

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self.loop.run_until(task.done, DRAIN_MS_MAX)
        task.result()

    def _finish_all(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        """Run until all tasks are done, also tasks that are added meanwhile; raise the error of a failed one first."""
        try:
            self.loop.run_until(lambda: all(task.done() for task in tasks), WORK_MS_MAX)
        finally:
            for task in tasks:
                if task.done():
                    task.result()

    def _outside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self.loop.spawn(self.loop.outside, work)

    def now_ns(self) -> int:
        """Return the time since the start; each call returns a later time."""
        return (self.environment.now_ms() - self.began_ms) * 1_000_000 + next(self._numbers)

    def keep(self, event: Event) -> None:
        """Record an event, unless the loop is being closed."""
        if self._over:
            return
        self.history.events.append(event)
        self.operations += event.kind is EventKind.INVOKE

    def _violated(self, invariant: str, sentence: str) -> None:
        self.violations.append(Violation(invariant, sentence, ()))

    def _result(self) -> RunResult:
        digest = hashlib.blake2b(digest_size=16)
        for part in (self.history.events, [str(one) for one in self.injector.happened], self.loop.steps):
            digest.update(msgspec.json.encode(part))
        return RunResult(
            self.scenario.name,
            self.seed,
            self.limits,
            self.history,
            tuple(self.violations),
            tuple(self.injector.happened),
            self.operations,
            self.loop.steps,
            self.environment.now_ms() - self.began_ms,
            digest.hexdigest(),
        )


async def _at_once() -> None:
    """Do not wait: the calls to the stores in memory wait instead."""


def _described(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-3:]
    where = " > ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in last)
    return f"{type(error).__name__}: {error} ({where})"
