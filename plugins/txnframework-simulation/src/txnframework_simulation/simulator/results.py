"""The result of a run, and its description in sentences."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from txnframework_simulation.checkers import Violation
from txnframework_simulation.history import Event, History
from txnframework_simulation.simulator.faults import InjectedFault


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a reduced run; ``only``: the numbers of the faults that are injected."""

    operations: int | None = None
    only: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class RunResult:
    """
    The result of one run; ``digest`` is equal for two runs only if every step was the same.

    ``operations`` counts the clients' operations; ``faults`` are those that happened.
    """

    scenario: str
    seed: int
    limits: Limits
    history: History
    violations: tuple[Violation, ...]
    faults: tuple[InjectedFault, ...]
    operations: int
    steps: int
    virtual_ms: int
    digest: str


EVENTS_SHOWN = 60
VIOLATIONS_SHOWN = 5
WIDTH_MAX = 240


def describe(result: RunResult, scenario: str | None = None) -> Iterator[str]:
    """
    Yield lines: how to repeat the run, its violations with the events that show them, and its faults.

    ``scenario``: the name or the file as given on the command line.
    """
    yield f"Scenario {result.scenario}, seed {result.seed}: {result.operations} client operations, including the drain;"
    yield f"{result.virtual_ms / 1000:.1f} s of virtual time, {len(result.faults)} faults."
    yield f"Repeat it with: txnframework simulate {shlex.join(arguments(result, scenario))}"
    for violation in result.violations[:VIOLATIONS_SHOWN]:
        yield ""
        yield f"Violated: {violation.invariant}"
        yield f"  {violation.sentence}"
        yield from (f"    {line(event)}" for event in shown(violation))
    if len(result.violations) > VIOLATIONS_SHOWN:
        yield f"and {len(result.violations) - VIOLATIONS_SHOWN} more violations."
    yield ""
    yield "Faults:" if result.faults else "No faults."
    for one in result.faults:
        yield f"  {one}"


def arguments(result: RunResult, scenario: str | None = None) -> list[str]:
    """Return the command-line arguments that repeat the run."""
    needed = ["--replay", str(result.seed), "--scenario", scenario or result.scenario]
    if result.limits.operations is not None:
        needed += ["--operations", str(result.limits.operations)]
    if result.limits.only is not None:
        # Only the faults that happened: a shorter run may end before others.
        needed += ["--only", ",".join(str(one.number) for one in result.faults) or "none"]
    return needed


def shown(violation: Violation) -> tuple[Event, ...]:
    """Return the events that show a violation, up to a readable number."""
    return violation.events[:EVENTS_SHOWN]


def line(event: Event) -> str:
    """Return an event on one line."""
    what = event.operation if event.operation is not None else event.reply or event.error
    text = f"{event.at_ns / 1e9:10.3f} s  {event.client:<12} {event.number:>4} {event.kind.value:<7} {what}"
    return text if len(text) <= WIDTH_MAX else f"{text[: WIDTH_MAX - 4]} ..."
