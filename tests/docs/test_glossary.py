"""The glossary and the code agree: each name that it gives exists, and each role and public class has a term."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest
from zope.interface.interface import InterfaceClass

import txnframework
import txnframework.interfaces

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
TERMS = {
    term: " ".join(text.split())
    for term, text in re.findall(r"^\*\*([^*]+)\*\*(.*?)(?=^\*\*|^## |\Z)", PAGE, re.M | re.S)
}
NAMED = {name: term for term, text in TERMS.items() for name in re.findall(r"`(\w+)`", text.partition("*Code:*")[2])}
CLIENT_CLASSES = ("Client", "Producer", "Consumer", "Reader", "Transaction", "MessageID")


def defined() -> set[str]:
    """Return the names of all classes and functions of the core and the plugins."""
    names = set[str]()
    for folder in (ROOT / "src", *ROOT.glob("plugins/*/src")):
        for path in folder.rglob("*.py"):
            names |= {
                node.name
                for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return names


def test_the_page_has_terms_and_names() -> None:
    """The page is read as it is meant: a term in bold, and the names after *Code:*."""
    assert len(TERMS) > 50
    assert NAMED["ICursor"] == "Cursor."


def test_every_name_on_the_page_exists() -> None:
    """A renamed class is renamed here too."""
    assert set(NAMED) <= defined()


def test_terms_are_in_order() -> None:
    """A reader looks a term up by its first letters."""
    ordered = [re.sub(r"[^a-z]+", " ", term.lower()).strip() for term in TERMS]
    assert ordered == sorted(ordered)


@pytest.mark.parametrize(
    "name",
    sorted(name for name, value in inspect.getmembers(txnframework.interfaces) if isinstance(value, InterfaceClass)),
)
def test_every_role_has_a_term(name: str) -> None:
    """A role, or a stronger promise of one, is explained under one term."""
    base = {role.__name__ for role in getattr(txnframework.interfaces, name).__iro__}
    assert base & set(NAMED), f"{name} has no term"


@pytest.mark.parametrize("name", CLIENT_CLASSES)
def test_every_class_of_the_client_has_a_term(name: str) -> None:
    """What a program uses is explained."""
    assert hasattr(txnframework, name)
    assert name in NAMED
