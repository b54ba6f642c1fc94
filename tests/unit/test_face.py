from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import txnframework


def imported_for_types() -> dict[str, str]:
    """Return, by name, the module that type checkers take it from."""
    assert txnframework.__file__ is not None
    tree = ast.parse(Path(txnframework.__file__).read_text())
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module is not None]
    return {one.name: node.module for node in froms for one in node.names if node.module and node.level == 0}


def test_each_name_is_what_type_checkers_see() -> None:
    """Names are imported lazily, from the module that type checkers use."""
    places = imported_for_types()
    for name in txnframework.__all__:
        module = importlib.import_module(places[name])
        expected = importlib.import_module(f"txnframework.{name}") if module is txnframework else getattr(module, name)
        assert getattr(txnframework, name) is expected
        assert name in dir(txnframework)


def test_a_name_that_is_not_there() -> None:
    """An unknown name raises AttributeError."""
    with pytest.raises(AttributeError, match="'txnframework' has no attribute 'Consmer'"):
        getattr(txnframework, "Consmer")  # noqa: B009 - a type checker knows that it is not there
    assert not hasattr(txnframework, "client_")
