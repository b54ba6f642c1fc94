"""Faults of a run: drawn from a seed, numbered, and left out again when a run is reduced."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate, count
from typing import Annotated

import msgspec
from msgspec import Meta

PerThousand = Annotated[float, Meta(ge=0, le=1000)]


class FaultKind(Enum):
    """Kind of a fault; the value is its key in the table ``faults`` of a scenario."""

    REFUSED = "refused"
    REPLY_LOST = "reply_lost"
    DELAYED = "delayed"
    REPLY_DELAYED = "reply_delayed"
    KILLED = "killed"
    PAUSED = "paused"
    LEASES_LOST = "leases_lost"
    CLOCK_MOVED = "clock_moved"
    APPLIED_LATE = "applied_late"
    WAKE_UP_LATE = "wake_up_late"
    WAKE_UP_REPEATED = "wake_up_repeated"
    WAKE_UP_MISSED = "wake_up_missed"
    VALUE_MISSING = "value_missing"
    VALUE_OLD = "value_old"


AT_WAKE_UPS = (FaultKind.WAKE_UP_LATE, FaultKind.WAKE_UP_REPEATED, FaultKind.WAKE_UP_MISSED)
"""A missed wake-up arrives with the next one, or when the store notices that it may have missed one."""
AT_VALUE = (FaultKind.VALUE_MISSING, FaultKind.VALUE_OLD)
"""Faults of the value of a watch: it is missing, or it is the first of several changes."""
AT_CALLS = tuple(kind for kind in FaultKind if kind not in AT_WAKE_UPS + AT_VALUE)


class FaultRates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Rates of faults, per thousand calls of stores, wake-ups of watches, and values of watches.

    ``delay_ms_max``: the maximum delay of a call or a reply.
    """

    refused: PerThousand = 4.0
    reply_lost: PerThousand = 4.0
    delayed: PerThousand = 4.0
    reply_delayed: PerThousand = 4.0
    killed: PerThousand = 1.5
    paused: PerThousand = 1.5
    leases_lost: PerThousand = 0.5
    clock_moved: PerThousand = 0.5
    applied_late: PerThousand = 0.0
    wake_up_late: PerThousand = 30.0
    wake_up_repeated: PerThousand = 20.0
    wake_up_missed: PerThousand = 10.0
    value_missing: PerThousand = 50.0
    value_old: PerThousand = 100.0
    delay_ms_max: Annotated[int, Meta(ge=1)] = 4_000


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault that happened; ``number`` counts the faults of a run, including those left out."""

    number: int
    kind: FaultKind
    at_ms: int
    machine: str
    about: str

    def __str__(self) -> str:
        """Return number, kind, machine and subject."""
        return f"{self.number}: {self.kind.value.replace('_', ' ')}, {self.machine}, {self.about}"


class FaultInjector:
    """
    Draws the faults of a run.

    ``only``: the numbers of the faults that are injected, None: all. Leaving out a fault does not change the drawn
    numbers, but it changes the rest of the run.
    """

    def __init__(
        self, rates: FaultRates, seed: str, now_ms: Callable[[], int], only: frozenset[int] | None = None
    ) -> None:
        self.happened: list[InjectedFault] = []
        self.over = False
        self._chance = random.Random(seed)  # noqa: S311 - repeatable on purpose
        # The details of a fault are drawn from another source, so that leaving out one fault does not change the later
        # ones.
        self._details = random.Random(f"{seed} details")  # noqa: S311
        self._now_ms = now_ms
        self._only = only
        self._delay_ms_max = rates.delay_ms_max
        self._numbers = count()
        self._at_calls = _limits(rates, AT_CALLS)
        self._at_wake_ups = _limits(rates, AT_WAKE_UPS)
        self._at_value = _limits(rates, AT_VALUE)

    def at_call(self, machine: str, about: object) -> FaultKind | None:
        """Draw the fault of a call."""
        return self._draw(self._at_calls, machine, about)

    def at_wake_up(self, machine: str) -> FaultKind | None:
        """Draw the fault of a wake-up."""
        return self._draw(self._at_wake_ups, machine, "a watch")

    def at_value(self, machine: str) -> FaultKind | None:
        """Draw the fault of a watch's value."""
        return self._draw(self._at_value, machine, "the value of a watch")

    def milliseconds(self, longest: int) -> int:
        """Return a duration: mostly short, sometimes almost the maximum."""
        return 1 + int(self._details.random() ** 3 * longest)

    def delay_ms(self) -> int:
        """Return the delay of a delayed call or reply."""
        return self.milliseconds(self._delay_ms_max)

    def steps(self, most: int) -> int:
        """Return a number of steps."""
        return self._details.randrange(most)

    def likely(self, chance: float) -> bool:
        """Return True with the given probability."""
        return self._details.random() < chance

    def between(self, least: int, most: int) -> int:
        """Return a number from a range, including its ends."""
        return self._details.randint(least, most)

    def _draw(self, limits: tuple[tuple[float, FaultKind], ...], machine: str, about: object) -> FaultKind | None:
        if self.over:
            return None
        drawn = self._chance.random()
        for limit, kind in limits:
            if drawn < limit:
                number = next(self._numbers)
                if self._only is not None and number not in self._only:
                    return None
                self.happened.append(InjectedFault(number, kind, self._now_ms(), machine, str(about)))
                return kind
        return None


def _limits(rates: FaultRates, kinds: tuple[FaultKind, ...]) -> tuple[tuple[float, FaultKind], ...]:
    """Return cumulative probabilities: the upper bound, between 0 and 1, of the draws for each kind."""
    each: Iterator[float] = accumulate(getattr(rates, kind.value) / 1000 for kind in kinds)
    return tuple(zip(each, kinds, strict=True))
