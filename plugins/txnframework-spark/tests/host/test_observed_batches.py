"""Observers of a micro-batch get its decision once, whichever process made it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from zope.interface import implementer

import txnframework_memory.plugin
import txnframework_metadata.plugin
from txnframework.broker import open_host
from txnframework.config import load_config
from txnframework.errors import Fenced
from txnframework.interfaces import IObservation, IObserver
from txnframework.model.observations import ObservedOperation, OperationKind, Outcome
from txnframework.plugin import ObserverContext, Provider, hookimpl, load_plugins
from txnframework_spark.sink.commit import abort_staged

Play = Callable[..., None]


@implementer(IObserver)
class Recorder:
    """Records how micro-batches end: their names, their actions and the types of their errors."""

    instruments = None

    def __init__(self) -> None:
        self.ended: list[tuple[str, str, str | None]] = []

    def begins(self, operation: ObservedOperation) -> IObservation:
        return IObservation(Recording(self, operation))


@implementer(IObservation)
@dataclass
class Recording:
    recorder: Recorder
    operation: ObservedOperation
    headers: tuple[tuple[str, bytes], ...] = ()

    def ends(self, outcome: Outcome) -> None:
        if self.operation.kind is OperationKind.BATCH:
            error = None if outcome.error is None else type(outcome.error).__name__
            self.recorder.ended.append((self.operation.application, self.operation.action, error))


@dataclass
class RecorderPlugin:
    recorder: Recorder = field(default_factory=Recorder)

    @hookimpl
    def txnframework_observers(self) -> list[Provider[ObserverContext, IObserver]]:
        async def opened(context: ObserverContext) -> IObserver:
            return IObserver(self.recorder)

        return [Provider("recorder", opened, Recorder)]


async def observed_run(world: Any) -> tuple[Any, list[tuple[str, str, str | None]]]:
    """Return a run whose host reports to a recorder, and what that recorded."""
    run, plugin = await world.run(), RecorderPlugin()
    registry = load_plugins((txnframework_memory.plugin, txnframework_metadata.plugin, plugin))
    run.host = await open_host(load_config({**world.config, "observers": {"recorder": {}}}), registry)
    world.stack.push_async_callback(run.host.close)
    return run, plugin.recorder.ended


def test_a_committed_batch_and_its_repetition(play: Play) -> None:
    """Spark repeats a batch that it has not recorded; the transaction of the repetition is aborted."""

    async def scenario(world: Any) -> None:
        await world.publish("a")
        run, ended = await observed_run(world)
        start, end = await run.plan(None)
        for _ in range(2):
            await run.replay(0, start, end)
        assert ended == [("app q 0", "commit", None), ("app q 0", "abort", None)]

    play(scenario)


def test_a_batch_that_is_aborted(play: Play) -> None:
    """By the failure of its commit, and then by Spark; or by Spark alone, when a task has failed."""

    async def scenario(world: Any) -> None:
        await world.publish("a")
        run, ended = await observed_run(world)
        start, end = await run.plan(None)
        staged = await run.stage(0, await run.read(0, start, end))
        await abort_staged(run.host, [staged])
        await abort_staged(run.host, [staged])
        assert ended == [("app q 0", "abort", None)]

        staged = await run.stage(0, await run.read(0, start, end))
        await world.run()
        with pytest.raises(Fenced):
            await run.commit(0, staged)
        await abort_staged(run.host, [staged])
        assert ended == 2 * [("app q 0", "abort", None)]

    play(scenario)
