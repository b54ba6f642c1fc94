"""Mutants fit the code that they are made of."""

from __future__ import annotations

import ast
import builtins
import dis
import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import CodeType

import pytest

from txnframework.errors import InvalidInput
from txnframework_simulation.mutants import Unusable, mutants, select_mutants, try_mutant
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
        edited = apply_edits(source, edits, module)
        assert ast.dump(ast.parse(edited)) != ast.dump(ast.parse(source))
        assert _unknown_names(edited, vars(importlib.import_module(module))) == set()


def _unknown_names(source: str, known: Mapping[str, object]) -> set[str]:
    """Return names that code of a module reads and that are neither the module's own nor Python's."""
    top = compile(source, "edited", "exec", dont_inherit=True)
    defined = {one.argval for one in dis.get_instructions(top) if one.opname in ("STORE_NAME", "STORE_GLOBAL")}
    codes, read = [top], set()
    while codes:
        code = codes.pop()
        codes.extend(one for one in code.co_consts if isinstance(one, CodeType))
        read |= {one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL"}
    return read - defined - set(known) - set(vars(builtins))


def test_unknown_name() -> None:
    """A name that is nowhere defined is found, also in a function inside another; parameters are no such names."""
    source = "def f(x):\n    def g():\n        return [x, len(x), known, y]\n    return g\n"
    assert _unknown_names(source, {"known": 1}) == {"y"}


def test_scenarios() -> None:
    """Every scenario that a mutant names is there."""
    assert {name for mutant in mutants() for name in mutant.scenarios} <= set(scenario_names())


def test_unknown_mutant() -> None:
    """A name that no mutant has is refused, and those that there are are said."""
    with pytest.raises(InvalidInput, match="there is no mutant 'x'; there are abort-record-late"):
        select_mutants(["x"])


def test_edit_that_does_not_fit() -> None:
    """An edit is refused unless its text occurs exactly once."""
    for source in ("a = 1\na = 1\n", "b = 1\n"):
        with pytest.raises(ValueError, match="not once: a = 1"):
            apply_edits(source, [("a = 1\n", "a = 2\n")], "module")


_BROKEN = """
[[mutant]]
name = "does-not-run"
rule = "an aborted branch leaves an abort record"
scenarios = ["chain"]
[[mutant.edits]]
module = "txnframework_metadata.buffer.abort_records"
find = "    if bounds:\\n        await ledger.tail()\\n"
replace = "    await forget_everything()\\n"
"""


@pytest.mark.parametrize("folder", ["", "scenarios/", "/elsewhere/"])
def test_scenarios_in_files(folder: str, tmp_path: Path) -> None:
    """Their paths are absolute, or relative to the folder of the table."""
    table = tmp_path / "mutants.toml"
    table.write_text(_BROKEN.replace('"chain"', f'"chain", "{folder}mine.toml"'), encoding="utf-8")
    assert mutants(table)[0].scenarios == ("chain", str(tmp_path / f"{folder}mine.toml"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("seeds = 3\n", "expected tables [[mutant]] with name, rule, scenarios and edits"),
        ("mutant = 3\n", "expected tables [[mutant]] with name, rule, scenarios and edits"),
        ("[[mutant]]\n", "expected tables [[mutant]] with name, rule, scenarios and edits"),
        ("[[mutant]\n", ""),
        (_BROKEN.replace("rule =", "rules ="), ""),
    ],
)
def test_a_file_that_is_no_table(text: str, reason: str, tmp_path: Path) -> None:
    """One sentence names the file, such as that of a scenario."""
    table = tmp_path / "mutants.toml"
    table.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInput) as caught:
        select_mutants([], table)
    assert str(caught.value).startswith(f"{table} is not a table of mutants: {reason}")


def test_an_edit_that_does_not_run(tmp_path: Path) -> None:
    """A mutant whose code raises NameError is not counted as detected."""
    table = tmp_path / "mutants.toml"
    table.write_text(_BROKEN, encoding="utf-8")
    result = try_mutant(mutants(table)[0], range(1, 6))
    assert isinstance(result, Unusable)
    assert "NameError: name 'forget_everything' is not defined" in result.reason
