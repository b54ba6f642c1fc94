"""Docs, docstrings, comments, messages and help are plain English: a list of words and phrases that are not used."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = (
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/**/*.md"),
    *ROOT.glob("plugins/*/README.md"),
    *ROOT.glob(".github/**/*.md"),
)
MODULES = (*ROOT.glob("src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py"), *ROOT.glob("bench/**/*.py"))
TESTS = {*ROOT.glob("tests/**/*.py"), *ROOT.glob("plugins/*/tests/**/*.py")} - {Path(__file__)}
"""Modules of which only docstrings and comments are checked: other strings in tests are data."""

PROSE = (tokenize.STRING, tokenize.COMMENT)
BETWEEN_STATEMENTS = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)

AVOIDED = {
    r"\b(is|are|was|were) told\b": "is notified, receives, learns",
    r"\btells (of|what|who|which|how|where|the|it|its|a|an)\b": "reports, describes",
    r"\bwho(so)?ever\b": "the caller, a process that",
    r"(?<!\")\bnobody\b": "no process, no consumer",
    r"\bsomebody\b": "another process, another user",
    r"\bnone of (our|its|their) business\b": "unaffected",
    r"\bthat there (is|are) not\b": "missing, unknown",
    r"\b(it|they|he|she|who|that) (stands?|stood)\b(?! by)": "is, is stored",
    r"\bas (it|they) stands?\b": "as it is now",
    r"\bstands? on\b": "depends on",
    r"\bcomes? round\b": "happens, returns",
    r"\bcame through\b": "succeeded",
    r"\bbur(y|ied)\b": "clean up, delete",
    r"\bstrikes? off\b|\bstruck off\b": "remove",
    r"\bto and fro\b": "back and forth",
    r"\bhow (it|they|one|the stores?) stands?\b": "status",
    r"\bgives? (it |them )?up for good\b": "delete",
    r"\bthat is left of\b": "remaining",
    r"\bere\b|\bhence\b|\bwhence\b|\bthereof\b|\bwhom\b|\bunto\b": "a plainer word",
    r"\bfor ever\b": "permanently",
    r"\blong since\b": "already",
    r"\bis in nobody's way\b": "does not block",
    r"\blets? (it|them) know\b": "notify",
    r"\bmade good\b": "repaired",
}
"""What is avoided, as a pattern, and what to write instead."""


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield a page's lines outside code, or a module's strings and comments, with their line numbers.

    Of a module of tests, only docstrings and comments are yielded.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        fenced = False
        for number, line in enumerate(text.splitlines(), 1):
            if line.lstrip().startswith("```"):
                fenced = not fenced
            elif not fenced:
                yield number, re.sub(r"`[^`]*`", "", line)
        return
    starts_statement = True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_data = path in TESTS and token.type == tokenize.STRING and not starts_statement
        if token.type in PROSE and not is_data:
            yield token.start[0], re.sub(r"``?[^`]*``?", "", token.string)
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            starts_statement = token.type in BETWEEN_STATEMENTS


def avoided_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield each avoided phrase in a text, and what to write instead."""
    plain = " ".join(text.split())
    for pattern, better in AVOIDED.items():
        for found in re.finditer(pattern, plain, re.IGNORECASE):
            yield found.group(), better


def complaints(path: Path) -> list[str]:
    """Return a line for each avoided phrase in a file."""
    return [
        f"{path.relative_to(ROOT)}:{line}: {phrase!r}: write {better}"
        for line, text in prose_of(path)
        for phrase, better in avoided_in(text)
    ]


@pytest.mark.parametrize("path", sorted({*PAGES, *MODULES}), ids=lambda path: str(path.relative_to(ROOT)))
def test_prose_is_plain(path: Path) -> None:
    """Pages and modules contain no avoided phrase."""
    found = complaints(path)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "folder", sorted({path.parent for path in TESTS}), ids=lambda folder: str(folder.relative_to(ROOT))
)
def test_prose_of_tests_is_plain(folder: Path) -> None:
    """Docstrings and comments of tests contain no avoided phrase."""
    found = [complaint for path in sorted(folder.glob("*.py")) if path in TESTS for complaint in complaints(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ("Whoever holds the lease is told.", ["is told", "Whoever"]),
        ("The data stand in a file; nobody answers.", ["nobody"]),
        ("It stands by for the holder, and reports the state.", []),
    ],
)
def test_avoided_phrases_are_found(text: str, phrases: list[str]) -> None:
    """The list is applied to words, not to parts of words."""
    assert sorted(phrase for phrase, _ in avoided_in(text)) == sorted(phrases)
