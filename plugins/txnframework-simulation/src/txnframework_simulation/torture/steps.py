"""Kills of a process by itself, at a step of its own transaction."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path

from txnframework_simulation.workloads.own_rows import STEPS, WRITTEN

CHANCE = 0.12
"""The probability that a process kills itself in a billing."""
COMMIT_MS_MAX = 30
"""The longest time from the last row to a kill: the COMMIT is sent, carried out and confirmed in that time."""
_SUFFIX = ".step"


class KillAtStep:
    """
    Kills this process by SIGKILL, at a step of a billing that is drawn at random.

    The last row is followed by the COMMIT. So a kill at this step comes somewhat later, in another thread, wherever the
    COMMIT is.

    :param history: the file of this process's history; a file beside it names the step.
    """

    def __init__(self, history: Path, chance: random.Random) -> None:
        self._note = step_file(history)
        self._chance = chance
        self._left = self._drawn()

    def __call__(self, step: str) -> None:
        """Kill the process if this step was drawn."""
        if step == STEPS[0]:
            self._left = self._drawn()
        if step != self._left:
            return
        self._note.write_text(step, encoding="ascii")
        if step == WRITTEN:
            threading.Timer(self._chance.uniform(0, COMMIT_MS_MAX) / 1000, _kill).start()
        else:
            _kill()

    def _drawn(self) -> str | None:
        return self._chance.choice(STEPS) if self._chance.random() < CHANCE else None


def step_file(history: Path) -> Path:
    """Return the file that names the step at which a process has killed itself."""
    return history.with_name(f"{history.name}{_SUFFIX}")


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
