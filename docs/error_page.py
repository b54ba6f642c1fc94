"""
The page of all errors, ``docs/reference/errors.md``, from the docstrings of their classes.

``python docs/error_page.py`` writes the page again.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "errors.md"

HEAD = """\
# Error codes

Every error has a code that never changes: `error.code` in a program. The command line prints the code after the
error's text, except for invalid usage, whose text says what to do. `txnframework explain TXN-302` prints the
entry of a code, and `txnframework explain TopicNotFound` that of a class in a traceback, also of installed
plugins. [Handle errors](../how-to/errors.md) explains the levels of *retry* and shows how to use them.

This page is written from the docstrings of the classes.
"""
FAMILIES = {
    "TXN-0": "The root",
    "TXN-1": "Invalid usage",
    "TXN-2": "Conflicts",
    "TXN-3": "Missing objects",
    "TXN-4": "Failures of the moment",
    "TXN-5": "Unreadable data",
    "SPARK": "Spark",
    "COMPARE": "Comparison of the families",
}
"""The headings of the page, by the beginning of the codes."""

FIELDS = ("known", "retry", "advice")


@dataclass(frozen=True, slots=True)
class Entry:
    """One error, as its class describes it; ``attributes`` are those that its constructor sets."""

    code: str
    name: str
    bases: tuple[str, ...]
    meaning: str
    fields: dict[str, str]
    attributes: frozenset[str]


def modules_of_errors() -> Iterator[Path]:
    """Yield the modules in which a distribution keeps its public errors."""
    for package in (*ROOT.glob("src/*"), *ROOT.glob("plugins/*/src/*")):
        yield from package.glob("errors.py")
        yield from sorted(package.glob("errors/*.py"))


def entries_of(module: Path) -> Iterator[Entry]:
    """Yield the classes of a module that have a code."""
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ClassDef):
            continue
        code = code_of(node)
        if code is None:
            continue
        text = " ".join((ast.get_docstring(node) or "").replace("``", "`").split())
        meaning, *fields = re.split(r" :(?=(?:known|retry|advice): )", text)
        yield Entry(
            code,
            node.name,
            tuple(ast.unparse(base) for base in node.bases),
            meaning,
            dict(one.split(": ", 1) for one in fields),
            frozenset(re.findall(r"self\.(\w+) = ", ast.unparse(node))),
        )


def code_of(node: ast.ClassDef) -> str | None:
    """Return the code that a class gives itself."""
    for one in node.body:
        target = (
            one.target if isinstance(one, ast.AnnAssign) else one.targets[0] if isinstance(one, ast.Assign) else None
        )
        if isinstance(target, ast.Name) and target.id == "code":
            return str(ast.literal_eval(one.value))
    return None


def entries() -> list[Entry]:
    """Return all errors in the order of the page."""
    found = [entry for module in modules_of_errors() for entry in entries_of(module)]
    families = list(FAMILIES)
    return sorted(found, key=lambda one: (families.index(family_of(one)), one.code))


def family_of(entry: Entry) -> str:
    """Return the beginning of an error's code that its heading belongs to."""
    return next(one for one in FAMILIES if entry.code.startswith(one))


def render() -> str:
    """Return the page."""
    parts = [HEAD]
    heading = ""
    for entry in entries():
        family = FAMILIES[family_of(entry)]
        if family != heading:
            heading = family
            parts.append(f"## {heading}\n")
        parts.append(
            f"### {entry.code}\n\n"
            f"`{entry.name}`: {entry.meaning}\n\n"
            f"* *Known*: {entry.fields['known']}\n"
            f"* *Retry*: {entry.fields['retry']}\n"
            f"* *To do*: {entry.fields['advice']}\n"
        )
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
