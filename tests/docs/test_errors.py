"""The page of errors: it has each public error, in the part of its family, with one of the levels of retrying."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from txnframework import errors
from txnframework.errors import TxnFrameworkError

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "errors.md").read_text(encoding="utf-8")
FAMILIES: dict[str, tuple[type[TxnFrameworkError], ...]] = {
    "Invalid input": (errors.InvalidInput,),
    "Conflicts": (errors.Conflict,),
    "Missing objects": (errors.NotFound,),
    "Failures of the moment": (errors.Unavailable, errors.OutcomeUnknown, errors.LeaseLost, errors.Closed),
    "Unreadable data": (errors.Corrupt,),
}
PUBLIC = {
    name: kind
    for name, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, TxnFrameworkError) and kind is not TxnFrameworkError
}


def rows_of(part: str) -> list[tuple[str, str, str]]:
    """Return error, what is known, and level of each row below a heading."""
    text = PAGE.partition(f"### {part}\n")[2].partition("\n### ")[0]
    return re.findall(r"^\| `(\w+)` \| (.+) \| (\w+) \|$", text, re.M)


def test_each_error_is_there_once() -> None:
    """An error that is added needs its line."""
    named = [name for part in FAMILIES for name, _, _ in rows_of(part)]
    assert sorted(named) == sorted(PUBLIC)


def test_each_error_is_in_the_part_of_its_family() -> None:
    for part, families in FAMILIES.items():
        for name, known, _ in rows_of(part):
            assert issubclass(PUBLIC[name], families), f"{name} is not of {part}"
            assert known.rstrip("*").endswith("."), name


def test_levels_are_those_of_the_table() -> None:
    """What is invalid or unreadable is never tried again, what is unavailable is."""
    levels = re.findall(r"^\| (\w+) \| [A-Z]", PAGE.partition("## At which level")[2].partition("\n## ")[0], re.M)
    assert len(levels) == 6
    for part in FAMILIES:
        for name, _, level in rows_of(part):
            assert level in levels, f"{name}: {level}"
            if issubclass(PUBLIC[name], errors.InvalidInput | errors.Corrupt):
                assert level == "never", name
            if issubclass(PUBLIC[name], errors.Unavailable):
                assert level in ("call", "commit"), name


def test_attributes_that_the_page_names() -> None:
    """Exist, with their names, on the error of the line."""
    for part in FAMILIES:
        for name, known, _ in rows_of(part):
            constructor = inspect.getsource(PUBLIC[name])
            for attribute in re.findall(r"(?<=[ (])`([a-z_]+)`", known):
                assert f"self.{attribute} = " in constructor, f"{name}.{attribute}"
