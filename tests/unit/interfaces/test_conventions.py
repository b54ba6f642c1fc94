"""The interface modules keep conventions that zope.interface does not check."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import txnframework.interfaces as interfaces

MODULES = sorted(Path(interfaces.__file__).parent.glob("_[a-z]*.py"))


def methods(tree: ast.Module) -> list[tuple[str, ast.stmt]]:
    return [(node.name, item) for node in tree.body if isinstance(node, ast.ClassDef) for item in node.body]


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_roles_are_positional_and_documented(module: Path) -> None:
    """
    Keyword-only parameters and more than three parameters cannot be verified or read well.

    Methods are async, but for those of a role that says that all of them are plain functions.
    """
    members = methods(ast.parse(module.read_text(encoding="utf-8")))
    assert members
    for owner, item in members:
        if isinstance(item, ast.Expr):
            continue
        if isinstance(item, ast.AnnAssign):
            assert isinstance(item.value, ast.Call), f"{owner}: an attribute is annotated and described"
            continue
        plain = getattr(interfaces, owner).queryTaggedValue("plain_methods", False)
        assert isinstance(item, ast.FunctionDef if plain else ast.AsyncFunctionDef), f"{owner}: every method is async"
        where = f"{owner}.{item.name}"
        assert ast.get_docstring(item), f"{where} has a docstring"
        assert len(item.body) == 1, f"{where} has no body"
        assert not item.args.kwonlyargs, f"{where} takes positional parameters"
        assert len(item.args.args) <= 3, f"{where} takes at most three parameters"
        assert item.returns is not None, f"{where} says what it returns"


def test_every_role_is_exported() -> None:
    defined = {
        node.name
        for module in MODULES
        for node in ast.parse(module.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    }
    assert defined == set(interfaces.__all__)
