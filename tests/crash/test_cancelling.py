"""Every public coroutine of the client is cancelled at every step: its work is then finished or undone."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest
from cancelling import of_messages, of_subscriptions, of_topics
from cancelling.stage import FAMILIES
from cancelling.stories import Story, described
from cancelling.walk import NotWhole, Way, walk

import txnframework
from txnframework.runtime.steps import Steps

if TYPE_CHECKING:
    from conftest import Explored

STORIES = (*of_messages.STORIES, *of_subscriptions.STORIES, *of_topics.STORIES)
FACE: tuple[type[Any], ...] = (
    txnframework.Client,
    txnframework.Producer,
    txnframework.Consumer,
    txnframework.Reader,
    txnframework.Snapshot,
    txnframework.Transaction,
    txnframework.JoinedTransaction,
)
ENTERED = ("__aenter__", "__aexit__", "__aiter__")
TOLD = [pytest.param(story, family, id=f"{story.name}-{family}") for story in STORIES for family in story.families]
SKIPPING = {Way.CANCELLED: 2, Way.TWICE: 1, Way.TIMEOUT: 1, Way.CLOSED: 1}
"""The quick run takes the first steps, and the fewer of those after them the lower this is; slow tests take all."""
SAMPLED = [
    pytest.param(*one.values, way, id=f"{one.id}-{way.value}")
    for one in TOLD
    for way in Way
    if one.values[1] in (one.values[0].sampled if way in (Way.CANCELLED, Way.CLOSED) else ("metadata",))
]
KNOWN: tuple[tuple[Story, str], ...] = (
    (of_subscriptions.CloseConsumer("exclusive"), "metadata"),
    (of_subscriptions.CloseConsumer("failover"), "marker"),
    (of_subscriptions.CloseConsumer("shared"), "sidecar"),
    (of_subscriptions.SeekSplit("exclusive"), "metadata"),
    (of_messages.Begin(), "metadata"),
    (of_messages.Commit(), "marker"),
    (of_messages.Commit(), "sidecar"),
    (of_topics.Split(), "metadata"),
)
"""Effects of unfinished steps if callers performed the steps themselves."""


def public_coroutines() -> set[str]:
    """Return what a program may await of the client's face, by introspection."""
    found = {"open.__aenter__", "open.__aexit__"}
    for one in FACE:
        for name, member in inspect.getmembers(one):
            is_public = not name.startswith("_") or name in ENTERED
            kinds = inspect.iscoroutinefunction, inspect.isasyncgenfunction
            if is_public and any(is_kind(inspect.unwrap(member)) for is_kind in kinds):
                found.add(f"{one.__name__}.{name}")
    return found


def test_every_public_coroutine_has_a_story() -> None:
    """A new public coroutine needs a story of its cancellation."""
    assert described(STORIES) == public_coroutines()


@pytest.mark.parametrize(("story", "family", "way"), SAMPLED)
def test_given_up(story: Story, family: str, way: Way, explored: Explored) -> None:
    """A sample of the full walk below."""
    points = list(walk(story, family, way, SKIPPING[way]))
    explored.add(type(story), f"{len(points)} times {way.value} in {family}", len(points))


@pytest.mark.parametrize(("story", "family"), KNOWN)
def test_steps_that_callers_take_themselves_are_found(
    story: Story, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If steps end with their callers, the sample finds the unfinished state."""

    async def in_the_caller(self: Steps, work: Any, keys: Any = (), undo: Any = None) -> Any:
        return await work()

    async def with_the_caller(self: Steps, step: Any, keys: Any = (), undo: Any = None) -> Any:
        return await step

    monkeypatch.setattr(Steps, "finish", in_the_caller)
    monkeypatch.setattr(Steps, "end_of", with_the_caller)
    monkeypatch.setattr("txnframework.client._consumer._failed", lambda _: False)
    with pytest.raises(NotWhole):
        list(walk(story, family, Way.CANCELLED, SKIPPING[Way.CANCELLED]))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("story", [of_messages.Commit(), of_messages.Abort(), of_messages.CommitById()])
def test_closing_in_mid_commit(story: Story, family: str, explored: Explored) -> None:
    """Closing a client completes and reports its commit, so that no sweep is needed."""
    points = list(walk(story, family, Way.CLOSED, SKIPPING[Way.CLOSED], sweeps=False))
    explored.add(type(story), f"{len(points)} times closed in {family} without sweeps", len(points))


@pytest.mark.parametrize("family", FAMILIES[1:])
def test_closing_that_waits_for_nothing_is_found(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If closing a client cancels its work, the sample finds commits that were decided but not reported."""
    close = Steps.close

    async def at_once(self: Steps, timeout_ms: int) -> None:
        await close(self, 0)

    monkeypatch.setattr(Steps, "close", at_once)
    with pytest.raises(NotWhole):
        list(walk(of_messages.Commit(), family, Way.CLOSED, SKIPPING[Way.CLOSED], sweeps=False))


@pytest.mark.slow
@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize(("story", "family"), TOLD)
def test_given_up_at_every_step(story: Story, family: str, way: Way, explored: Explored) -> None:
    """After a cancellation at any step, all invariants hold."""
    points = list(walk(story, family, way))
    explored.add(type(story), f"{len(points)} times {way.value} in {family}", len(points))
