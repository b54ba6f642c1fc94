"""Search for a Python transform without running any of its code: neither its module nor the packages above it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from txnframework.config import Place
from txnframework.errors import excerpt


def locate_python(name: str, place: Place) -> None:
    """
    Check that ``module:function`` exists, from its source; names that only running it defines are not checked.

    :raises ConfigurationError: the module does not exist, is not Python, or has no such function.
    """
    module_name, _, function_name = name.partition(":")
    beside = Path(place.file or ".").absolute().parent
    spec = _spec_of(module_name, beside)
    if spec is None:
        raise place.error(f"there is no module {module_name}, neither in {beside} nor among what is installed")
    source = Path(spec.origin or "")
    if source.suffix != ".py":
        return  # a compiled module: only an import would show its functions
    try:
        tree = ast.parse(source.read_bytes(), str(source))
    except (SyntaxError, ValueError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise place.error(f"module {module_name} is not Python ({source.name}{line}): {reason}") from error
    except OSError as error:
        raise place.error(f"module {module_name} cannot be read: {error.strerror}") from error
    names = set(_names_in(tree.body))
    if function_name not in names and "*" not in names:
        raise place.error(f"module {module_name} has no function {excerpt(function_name)[1:-1]}")


def _spec_of(name: str, beside: Path) -> ModuleSpec | None:
    """Return the spec of a module; ``importlib.util.find_spec`` would import the packages above it."""
    spec: ModuleSpec | None = None
    path: Sequence[str] | None = None
    parts = name.split(".")
    for number in range(1, len(parts) + 1):
        spec = _found(".".join(parts[:number]), path, beside if number == 1 else None)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or ())
    return spec


def _found(name: str, path: Sequence[str] | None, beside: Path | None) -> ModuleSpec | None:
    if beside is not None and (spec := PathFinder.find_spec(name, [str(beside)])) is not None:
        return spec
    for finder in sys.meta_path:
        spec = finder.find_spec(name, path)
        if spec is not None:
            return spec
    return None


def _names_in(body: Sequence[ast.stmt]) -> Iterator[str]:
    """Yield the names that a module's statements define, including those in branches; ``*``: further names."""
    for statement in body:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (one.asname or one.name.partition(".")[0] for one in names)
            case ast.Assign(targets=targets):
                yield from (one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case (
                ast.If(body=inner, orelse=other)
                | ast.For(body=inner, orelse=other)
                | ast.While(body=inner, orelse=other)
            ):
                yield from _names_in([*inner, *other])
            case ast.With(body=inner):
                yield from _names_in(inner)
            case ast.Try(body=inner, orelse=other, finalbody=last, handlers=handlers):
                yield from _names_in([*inner, *other, *last, *(one for handler in handlers for one in handler.body)])
            case _:
                pass
