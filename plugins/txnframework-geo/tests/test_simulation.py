"""Replicators under seeds: whatever goes wrong, nothing is lost, doubled, torn or reordered."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from txnframework_geo import testing
from txnframework_geo.testing.replicated import COPIES, LEFT, RIGHT, SNAPSHOT, Replicated, ReplicatedOptions
from txnframework_simulation.history import (
    Drained,
    DrainRows,
    DrainTopic,
    History,
    MessagePosition,
    Recorder,
    RowsFound,
    SeenMessage,
)
from txnframework_simulation.mutants.runner import apply_edits, edits_by_module, read_table
from txnframework_simulation.simulator.results import describe
from txnframework_simulation.simulator.run import run
from txnframework_simulation.simulator.scenario import load_scenario

FOLDER = Path(testing.__file__).parent
MUTANTS = FOLDER / "mutants.toml"
SEEDS = {"replication": range(1, 8), "recreation": range(1, 4)}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Hide the logs of intended failures."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", sorted(SEEDS))
def test_seeds(name: str) -> None:
    scenario = load_scenario(str(FOLDER / f"{name}.toml"))
    for seed in SEEDS[name]:
        result = run(scenario, seed)
        assert not result.violations, "\n".join(describe(result))


@pytest.mark.parametrize("name", read_table(MUTANTS))
def test_mutants_fit(name: str) -> None:
    """What a mutant replaces is in its module exactly once, and its scenarios exist."""
    table = read_table(MUTANTS)[name]
    for module, edits in edits_by_module(table).items():
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        compile(apply_edits(Path(spec.origin).read_text(encoding="utf-8"), edits, module), module, "exec")
    assert all(Path(scenario).exists() for scenario in table["scenarios"])


def sentences(copied: tuple[str, ...], snapshot: tuple[str, ...] = (), of_right: tuple[str, ...] = ()) -> list[str]:
    """Return what is said of copies of the messages a and b of one key, and t/2/0 of another; ``KEY=VALUE@ORIGIN``."""
    history = History()
    recorder = Recorder(iter(range(1, 100)).__next__, history.events.append)
    sent = [("k", "a"), ("k", "b"), ("l", "t/2/0")]
    segment = f"{LEFT.replace('topic', 'segment', 1)}/0000-ffff-0"
    seen = [SeenMessage(MessagePosition(segment, 0, entry), value, key) for entry, (key, value) in enumerate(sent)]
    read = {f"{LEFT} {one}": one for one in snapshot} | {f"{RIGHT} {one}": one for one in of_right}
    recorder.invoke("last", DrainRows(SNAPSHOT)).ok(RowsFound(read))
    rows = {}
    for number, one in enumerate(copied):
        key, rest = one.split("=")
        value, origin = rest.split("@")
        rows[f"{LEFT} {number}"] = f"{origin} {value} {key}"
    recorder.invoke("last", DrainRows(COPIES)).ok(RowsFound(rows))
    recorder.invoke("last", DrainTopic(LEFT)).ok(Drained(tuple(seen)))
    recorder.invoke("last", DrainTopic(RIGHT)).ok(Drained(()))
    return [f"{one.invariant}: {one.sentence}" for one in Replicated(ReplicatedOptions()).violations(history)]


def test_accepted() -> None:
    """Keys may be in any order to each other."""
    assert sentences(("l=t/2/0@3", "k=a@1", "k=b@2"), ("t/2/0", "a"), ("t/2/1",)) == []


@pytest.mark.parametrize(
    ("copied", "snapshot", "said"),
    [
        (("k=a@1", "k=b@2"), (), "every committed message is copied: t/2/0 of"),
        (("k=a@1", "k=b@2", "l=t/2/0@3", "k=b@2"), (), "every message is copied once: 2 was copied 2 times"),
        (("k=a@1", "k=b@2", "l=t/2/0@3", "k=x@4"), (), "every message is copied once: x is in the target too often"),
        (("k=b@2", "k=a@1", "l=t/2/0@3"), (), "each key keeps its order: key k of"),
        (("k=a@1", "k=b@2", "l=t/2/0@3"), ("t/2/0",), "never shows a part of a transaction: 1 of 2 messages of t"),
    ],
)
def test_rejected(copied: tuple[str, ...], snapshot: tuple[str, ...], said: str) -> None:
    assert any(said in sentence for sentence in sentences(copied, snapshot))
