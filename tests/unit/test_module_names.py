"""Names: modules are nouns, class names are unique in a distribution, and retired names are not used."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = {
    "txnframework": ROOT / "src",
    **{path.name: path / "src" for path in sorted(ROOT.glob("plugins/*")) if (path / "src").is_dir()},
}

NOUNS_IN_ING = frozenset({"testing", "batching", "blocking"})
"""Verb-like module names that are terms of the field."""

RETIRED = frozenset(
    {
        "Belonging",
        "Doubts",
        "Foundation",
        "Lane",
        "Line",
        "Looking",
        "Misfortune",
        "Misfortunes",
        "Ongoing",
        "Passing",
        "Place",
        "Reading",
        "Room",
        "Standing",
        "Telling",
        "Terms",
        "Turns",
        "Upkeep",
        "Waiting",
    }
)
"""Retired last words of class names, which are ambiguous or unusual."""

TWICE = {
    # The transaction of a program, and the value that describes one: programs and plugin authors use one of them each.
    "txnframework": {"Transaction"},
}
"""Class names that a distribution uses twice, with the reason."""

VAGUE = ("Manager", "Handler", "Processor", "Helper", "Utils")
"""Endings of class names without a meaning."""


def modules(distribution: str) -> list[Path]:
    """Return the modules of a distribution."""
    return sorted(DISTRIBUTIONS[distribution].rglob("*.py"))


def module_name(path: Path) -> str:
    """Return the name of a module, or of the package whose ``__init__`` it is, without a leading underscore."""
    return (path.parent.name if path.name == "__init__.py" else path.stem).lstrip("_")


def classes(distribution: str) -> dict[str, list[Path]]:
    """Return where each public class of a distribution is defined, without the blocking facade's."""
    found = defaultdict[str, list[Path]](list)
    for path in modules(distribution):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and "blocking" not in path.parts:
                found[node.name].append(path.relative_to(ROOT))
    return found


def last_word(name: str) -> str:
    """Return the last word of a name in capitals, which says what kind of thing it is."""
    start = max((at for at, letter in enumerate(name) if letter.isupper()), default=0)
    return name[start:]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_modules_are_nouns(distribution: str) -> None:
    """The name of a module says what it contains."""
    verbs = {
        str(path.relative_to(ROOT))
        for path in modules(distribution)
        if module_name(path).rpartition("_")[2].endswith("ing") and module_name(path) not in NOUNS_IN_ING
    }
    assert not verbs


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_class_names_are_used_once(distribution: str) -> None:
    """A search for a class has one result."""
    twice = {name for name, places in classes(distribution).items() if len(places) > 1}
    assert twice == TWICE.get(distribution, set())


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_retired_names_stay_retired(distribution: str) -> None:
    """A word has one meaning, as in the field."""
    wrong = {
        f"{name} in {places[0]}"
        for name, places in classes(distribution).items()
        if last_word(name) in RETIRED or name.endswith(VAGUE)
    }
    assert not wrong


def test_last_words() -> None:
    """Only whole last words are compared."""
    assert last_word("SegmentLane") == "Lane"
    assert last_word("Deadline") == "Deadline"
