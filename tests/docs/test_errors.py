"""Errors: each public one has a code and an entry on the page, which agrees with its class; `explain` prints it."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from txnframework import errors
from txnframework.cli import main
from txnframework.errors import TopicNotFound, TxnFrameworkError, Unavailable

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
from error_page import PAGE, Entry, entries, modules_of_errors, render  # noqa: E402 - a module of the documentation

ENTRIES = {one.name: one for one in entries()}
FAMILIES = {
    1: {"InvalidInput"},
    2: {"Conflict"},
    3: {"NotFound"},
    4: {"Unavailable", "OutcomeUnknown", "LeaseLost", "Closed"},
    5: {"Corrupt"},
}
"""The first digit of a code's number, and the classes that have it and their subclasses."""


def ancestors_of(name: str) -> set[str]:
    """Return an error and the errors that it is a subclass of."""
    entry = ENTRIES.get(name)
    return {name}.union(*map(ancestors_of, entry.bases)) if entry else {name}


def test_the_page_agrees_with_the_classes() -> None:
    """If not: ``python docs/error_page.py``."""
    assert PAGE.read_text(encoding="utf-8") == render()


def test_every_public_error_has_a_code_of_its_own() -> None:
    """An error is public unless its module is private, or is for tests."""
    known = {"TxnFrameworkError", *ENTRIES}
    missing = []
    at_errors = set(modules_of_errors())
    for module in (*ROOT.glob("src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base) in known for base in node.bases):
                private = module not in at_errors and (
                    {"testing", "workloads"} & set(module.parts) or any(part.startswith("_") for part in module.parts)
                )
                if not private and node.name not in ENTRIES:
                    missing.append(f"{module.relative_to(ROOT)}: {node.name}")
    assert not missing


def test_codes_are_unique_and_of_their_family() -> None:
    codes = [one.code for one in entries()]
    assert len(set(codes)) == len(codes) > 60
    for entry in entries():
        if entry.name != "TxnFrameworkError":
            digit = int(entry.code.rpartition("-")[2][0])
            assert ancestors_of(entry.name) & FAMILIES[digit], entry


@pytest.mark.parametrize("entry", entries(), ids=lambda one: one.code)
def test_entries_are_whole(entry: Entry) -> None:
    """Known and advice are sentences, and the level is one of the page about errors."""
    levels = (ROOT / "docs" / "how-to" / "errors.md").read_text(encoding="utf-8").partition("## At which level")[2]
    fields = entry.fields
    assert list(fields) == ["known", "retry", "advice"]
    assert f"\n| {fields['retry']} | " in levels
    assert fields["known"].endswith(".")
    assert fields["advice"].endswith(".")
    assert entry.meaning.endswith(".")


def test_levels_fit_the_families() -> None:
    """What is invalid or unreadable is never tried again, what is unavailable is."""
    for entry in entries():
        family, retry = ancestors_of(entry.name), entry.fields["retry"]
        if family & {"InvalidInput", "Corrupt"}:
            assert retry == "never", entry
        if "Unavailable" in family:
            assert retry in ("call", "commit"), entry


def test_attributes_that_entries_name() -> None:
    """What is quoted in an entry of the core, and is the name of an attribute anywhere, is one of its own."""
    attributes = frozenset().union(*(one.attributes for one in entries()))
    for entry in entries():
        text = f"{entry.meaning} {entry.fields['known']}"
        for name in attributes:
            if f"`{name}`" in text:
                assert name in entry.attributes, f"{entry.name}.{name}"


def test_an_error_carries_its_code() -> None:
    """A plugin's error without a code has that of its parent."""
    error = TopicNotFound("orders")
    assert error.code == "TXN-302"
    assert str(error) == "topic orders does not exist; create it first"
    assert str(TopicNotFound("topic://public/default/orders")).startswith("topic://public/default/orders does not")

    class Away(Unavailable):
        """A plugin's own error, without a code."""

    assert Away("x").code == Unavailable.code
    assert all(issubclass(getattr(errors, one.name), TxnFrameworkError) for one in entries() if one.code[:3] == "TXN")


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    """A code is found in any case, and in a line of a traceback; an unknown one is invalid usage, with suggestions."""
    for entry in entries():
        if entry.code.startswith("TXN"):
            assert main(["explain", entry.code.lower(), "--output", "json"]) == 0
            document = json.loads(capsys.readouterr().out)
            assert document["advice"] == entry.fields["advice"].replace("`", "")
            assert document["error"] == f"txnframework.errors.{entry.name}"
    line = "txnframework.errors.TopicNotFound: topic orders does not exist; create it first"
    for name in ("TopicNotFound", "txnframework.errors.TopicNotFound", line, "Error: x (txnframework explain TXN-302)"):
        assert main(["explain", name]) == 0
        assert capsys.readouterr().out.startswith("TXN-302 ")
    assert main(["explain", "TXN-3O2"]) == 2
    assert "no error is named 'TXN-3O2'; did you mean TXN-302" in capsys.readouterr().err
    assert main(["explain", "TopicNotFuond"]) == 2
    assert "did you mean TopicNotFound?" in capsys.readouterr().err
    assert main(["explain", "nonsense"]) == 2
    assert "no error is named 'nonsense'; write a code such as TXN-302" in capsys.readouterr().err


def test_the_page_about_errors(tmp_path: Path, run_page: Callable[..., None]) -> None:
    run_page(ROOT / "docs" / "how-to" / "errors.md", {}, shows_all=True)
    assert not list(tmp_path.iterdir())
