"""A commit and a take-over start some steps apart: in any order, each message takes effect once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from txnframework.errors import Conflict


@pytest.mark.parametrize("old_query", ["q", "older"])
def test_whoever_wins_each_message_takes_effect_once(play: Callable[..., None], old_query: str) -> None:
    """The same query after a restart, and a new one after a lost checkpoint."""
    outcomes: set[bool] = set()
    one_after_the_other = False

    def scenario_after(steps: int) -> Callable[[Any], Any]:
        async def scenario(world: Any) -> None:
            await world.publish("a", "b")
            old = await world.run(old_query)
            start, end = await old.plan(None)
            staged = await old.stage(0, await old.read(0, start, end))
            ended = asyncio.Event()

            async def commit() -> bool:
                try:
                    await old.commit(0, staged)
                except Conflict:
                    return False
                finally:
                    ended.set()
                return True

            async def take_over() -> Any:
                nonlocal one_after_the_other
                for _ in range(steps):
                    await asyncio.sleep(0)
                one_after_the_other = ended.is_set()
                return await world.run("q")

            committed, new = await asyncio.gather(commit(), take_over())
            outcomes.add(committed)
            if old_query == "q":
                # The checkpoint is there: Spark replays what it planned.
                await new.replay(0, (await new.plan(None))[0], end)
            else:
                await new.batch(0, None)
            assert sorted(await world.read()) == ["a!", "b!"]

        return scenario

    for steps in range(0, 240, 3):
        play(scenario_after(steps))
        if one_after_the_other:  # and so they are after more steps
            break
    assert one_after_the_other
    assert outcomes == {True, False}
