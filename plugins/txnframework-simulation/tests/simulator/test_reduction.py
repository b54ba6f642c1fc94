"""A run that failed is made smaller as long as it fails in the same way."""

from __future__ import annotations

from txnframework_simulation.checkers import Violation
from txnframework_simulation.history import History
from txnframework_simulation.simulator.faults import FaultKind, InjectedFault
from txnframework_simulation.simulator.reduction import reduce_run
from txnframework_simulation.simulator.results import Limits, RunResult, arguments, describe

OPERATIONS, MISFORTUNES = 60, 20


def ran(limits: Limits, *violated: str) -> RunResult:
    """What a run with these limits came to."""
    numbers = range(MISFORTUNES) if limits.only is None else sorted(limits.only)
    return RunResult(
        "chain",
        7,
        limits,
        History(),
        tuple(Violation(invariant, "it was so", ()) for invariant in violated),
        tuple(InjectedFault(number, FaultKind.KILLED, 0, "host1", "put") for number in numbers),
        limits.operations or OPERATIONS,
        0,
        0,
        "",
    )


def needs(operations: int, *injector: int) -> RunResult:
    """The smallest run found, of one that fails whenever it has so many operations and these injector."""

    def again(limits: Limits) -> RunResult:
        happened = range(MISFORTUNES) if limits.only is None else limits.only
        fails = (limits.operations or OPERATIONS) >= operations and set(injector) <= set(happened)
        return ran(limits, *(["torn transaction"] if fails else ["stuck reader"]))

    return reduce_run(again(Limits()), again)


def test_what_is_not_needed_is_left_out() -> None:
    """Only the operations and injector stay without which it does not fail."""
    smallest = needs(13, 4, 17)
    assert smallest.limits == Limits(13, frozenset({4, 17}))
    assert [one.number for one in smallest.faults] == [4, 17]


def test_nothing_at_all_may_be_needed() -> None:
    """A run that fails without injector ends with none."""
    assert needs(1).limits == Limits(1, frozenset())


def test_another_violation_is_another_failure() -> None:
    """A smaller run counts only if it violates the same rule."""
    assert [one.invariant for one in needs(60, *range(MISFORTUNES)).violations] == ["torn transaction"]


def test_a_run_is_told_with_how_to_repeat_it() -> None:
    """The line to type names the seed and everything that was left out."""
    smallest = needs(13, 4, 17)
    expected = ["--replay", "7", "--scenario", "chain", "--operations", "13", "--only", "4,17"]
    assert arguments(smallest) == expected
    told = "\n".join(describe(smallest))
    assert " ".join(expected) in told
    assert "torn transaction" in told
    assert arguments(needs(1))[-1] == "none"
