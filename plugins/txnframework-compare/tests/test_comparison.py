"""Taking measures in rounds, and what becomes of a family that cannot."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from txnframework.config import DomainSection
from txnframework.errors import EndTransactionTimeout
from txnframework.model import TxnID
from txnframework.plugin import load_plugins
from txnframework_compare.backends import backend
from txnframework_compare.comparison import Comparison, MeasureResults, result_of
from txnframework_compare.families import FAMILIES, Family
from txnframework_compare.measures import Figure, Measure, NotMeasurable, Plot, TableView
from txnframework_compare.system import System, Workload

WORKLOAD = Workload(participants=(1, 2), rounds=3)
ABSENT = Family("absent", "", "persistent", DomainSection(coordinator="log", buffer="nowhere", pending_ack="log"))


@dataclass
class Noted:
    """A measure that notes who was measured, and the listener of its run."""

    taken: list[tuple[str, int]] = field(default_factory=list)
    steps: int = 0
    gives_up: str | None = None

    async def take(self, system: System, size: int) -> tuple[Figure, ...]:
        self.taken.append((system.family.name, size))
        if system.family.name == self.gives_up:
            raise EndTransactionTimeout(TxnID(0, 1), 5)
        return (Figure("one", float(len(self.taken)), "ms"),)

    def begin(self, measure: Measure, steps: int) -> None:
        self.steps = steps

    def step(self, doing: str) -> None:
        self.steps -= 1

    def end(self) -> None:
        assert self.steps == 0

    def run(self, *families: Family) -> MeasureResults:
        measure = Measure(
            name="noted",
            title="Noted",
            take=self.take,
            views=(TableView("one", {"one": "one"}, "An explanation."),),
            plot=Plot("lines", {"one": "one"}, "one (ms)"),
            axis="participants",
            sizes=lambda workload: workload.participants,
        )
        registry = load_plugins()

        async def work() -> MeasureResults:
            with backend("memory:", None, registry) as stores:
                comparison = Comparison(families, [measure], WORKLOAD, stores, registry, self)
                (found,) = [one async for one in comparison.measured()]
                return found

        return asyncio.run(work())


def test_families_are_taken_in_turn() -> None:
    """Every other round in the other order, one size after the other: a slow moment is slow for all of them."""
    noted, (first, second) = Noted(), (FAMILIES["log"], FAMILIES["metadata"])
    found = noted.run(first, second)
    order = ["log", "metadata", "metadata", "log", "log", "metadata"]
    assert noted.taken == [(name, size) for size in (1, 2) for name in order]
    assert found.of(second)[1].figure("one").rounds == (2.0, 3.0, 6.0)
    assert found.of(first)[2].figure("one").median == 10.0


def test_a_family_that_is_not_installed() -> None:
    """A family that is not installed is not opened; the result says what to install. The others are measured."""
    noted = Noted()
    found = noted.run(ABSENT, FAMILIES["metadata"])
    for size in WORKLOAD.participants:
        unable = found.of(ABSENT)[size].figure("one").unable
        assert unable == ("the transaction buffer 'nowhere' is not installed: pip install txnframework-nowhere")
        assert found.of(FAMILIES["metadata"])[size].figure("one").rounds


def test_a_family_that_gives_up() -> None:
    """A family whose ending times out is not measured again, and the result has the reason."""
    noted = Noted(gives_up="log")
    found = noted.run(FAMILIES["log"], FAMILIES["metadata"])
    assert noted.taken.count(("log", 1)) == 1
    assert ("log", 2) not in noted.taken
    assert "within 5 ms" in (found.of(FAMILIES["log"])[2].figure("one").unable or "")
    assert len(found.of(FAMILIES["metadata"])[2].figure("one").rounds) == 3


def test_what_cannot_be_done_in_one_round_has_no_number() -> None:
    """It would be a median over other rounds than the others have."""
    rounds = [(Figure("one", 1.0, "ms"),), (Figure("one", NotMeasurable("why"), "ms"),)]
    taken = result_of(replace(ABSENT), 1, rounds).figure("one")
    assert (taken.rounds, taken.unable) == ((), "why")
