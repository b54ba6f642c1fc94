"""Mutants fit the code that they are made of."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

from txnframework.errors import InvalidInput
from txnframework_simulation.mutants import mutants, select_mutants
from txnframework_simulation.mutants.runner import apply_edits, edits_by_module, read_table
from txnframework_simulation.simulator.scenario import scenario_names


@pytest.mark.parametrize("name", read_table())
def test_edits_fit(name: str) -> None:
    """What a mutant replaces stands in its module exactly once, and the module can still be read by Python then."""
    for module, edits in edits_by_module(read_table()[name]).items():
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        source = Path(spec.origin).read_text(encoding="utf-8")
        assert ast.dump(ast.parse(apply_edits(source, edits, module))) != ast.dump(ast.parse(source))


def test_scenarios() -> None:
    """Every scenario that a mutant names is there."""
    assert {name for mutant in mutants() for name in mutant.scenarios} <= set(scenario_names())


def test_unknown_mutant() -> None:
    """A name that no mutant has is refused, and those that there are are said."""
    with pytest.raises(InvalidInput, match="there is no mutant 'x'; there are abort-record-late"):
        select_mutants(["x"])


def test_edit_that_does_not_fit() -> None:
    """An edit whose piece stands there twice is refused, as one that stands there not at all."""
    for source in ("a = 1\na = 1\n", "b = 1\n"):
        with pytest.raises(ValueError, match="not once: a = 1"):
            apply_edits(source, [("a = 1\n", "a = 2\n")], "module")
