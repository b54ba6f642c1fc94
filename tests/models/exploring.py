"""Walks through every order in which the steps of a model can happen, the shortest first."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

State = TypeVar("State", bound=Hashable)

Steps = Callable[[State], Iterable[tuple[str, State]]]
"""The possible next steps of all processes, with labels; a step is atomic in the stores."""

Harm = Callable[[State], str | None]
"""The violation in a state, or None."""

STATES_MAX = 500_000


class Explored(NamedTuple):
    """
    What came of it.

    ``states``: how many were met. ``harm``: what went wrong in the first of them in which something did, None if
    nothing can. ``story``: the labels of the steps that led there, as few as there can be.
    """

    states: int
    harm: str | None = None
    story: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Tell the story, one step a line."""
        return "\n  ".join([f"{self.harm or 'nothing goes wrong'} ({self.states} states):", *self.story])


def explore(start: State, steps: Steps[State], wrong: Harm[State], left: Harm[State] = lambda state: None) -> Explored:
    """
    Return the shortest way to a state that is ``wrong``, or that no step leads out of and where something is ``left``.

    :raises OverflowError: the model has more states than can be walked through in a test.
    """
    with _no_garbage_collection():
        return _explore(start, steps, wrong, left)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """States refer to no cycles, and a collection goes through all of them again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _explore(start: State, steps: Steps[State], wrong: Harm[State], left: Harm[State]) -> Explored:
    came_from: dict[State, tuple[str, State] | None] = {start: None}
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        harm, at_rest = wrong(state), True
        for label, following in () if harm else steps(state):
            if following == state:
                continue
            at_rest = False
            if following not in came_from:
                came_from[following] = (label, state)
                waiting.append(following)
        if at_rest and not harm:
            harm = left(state)
        if harm:
            return Explored(len(came_from), harm, _story(came_from, state))
        if len(came_from) > STATES_MAX:
            raise OverflowError(f"more than {STATES_MAX} states")
    return Explored(len(came_from))


def _story(came_from: dict[State, tuple[str, State] | None], state: State) -> tuple[str, ...]:
    labels: list[str] = []
    step = came_from[state]
    while step is not None:
        label, before = step
        labels.append(label)
        step = came_from[before]
    return tuple(reversed(labels))
