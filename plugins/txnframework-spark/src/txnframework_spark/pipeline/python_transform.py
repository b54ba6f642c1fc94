"""A Python transform: search for it without running any of its code, and its call."""

from __future__ import annotations

import ast
import importlib
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from txnframework.config import KeyPath
from txnframework.errors import excerpt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def find_function(name: str, place: KeyPath) -> None:
    """
    Check that ``module:function`` exists, from its source; names that only running it defines are not checked.

    :raises ConfigurationError: the module does not exist, is not Python, or has no such function.
    """
    module_name, _, function_name = name.partition(":")
    folder = Path(place.file or ".").absolute().parent
    spec = _find_module(module_name, folder)
    if spec is None:
        raise place.error(f"module {module_name} not found, neither in {folder} nor among the installed packages")
    source = Path(spec.origin or "")
    if source.suffix != ".py":
        return  # a compiled module: only an import would show its functions
    try:
        tree = ast.parse(source.read_bytes(), str(source))
    except (SyntaxError, ValueError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise place.error(f"module {module_name} is not valid Python ({source.name}{line}): {reason}") from error
    except OSError as error:
        raise place.error(f"module {module_name} cannot be read: {error.strerror}") from error
    names = set(_names_in(tree.body))
    if function_name not in names and "*" not in names:
        raise place.error(f"module {module_name} has no function {excerpt(function_name)[1:-1]}")


def _find_module(name: str, folder: Path) -> ModuleSpec | None:
    """Return the spec of a module; ``importlib.util.find_spec`` would import the packages above it."""
    spec: ModuleSpec | None = None
    path: Sequence[str] | None = None
    parts = name.split(".")
    for number in range(1, len(parts) + 1):
        spec = _find_spec(".".join(parts[:number]), path, folder if number == 1 else None)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or ())
    return spec


def _find_spec(name: str, path: Sequence[str] | None, folder: Path | None) -> ModuleSpec | None:
    if folder is not None and (spec := PathFinder.find_spec(name, [str(folder)])) is not None:
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


def call_function(
    spark: SparkSession, name: str, views: Mapping[str, DataFrame], place: KeyPath
) -> Mapping[str | None, DataFrame]:
    """Return the DataFrames that ``module:function`` makes of the views, by name; a single one has the name None."""
    module_name, _, function_name = name.partition(":")
    folder = Path(place.file or ".").absolute().parent
    function = _function(_imported(module_name, folder, place), function_name, place)
    _ship(spark, sys.modules[module_name], folder)
    try:
        made = function(spark, dict(views))
    except Exception as error:  # user code may raise any exception
        raise place.error(f"{name} failed: {_describe(error)}") from error
    return _frames(made, name, place)


def _imported(name: str, folder: Path, place: KeyPath) -> ModuleType:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise place.error(f"module {name} cannot be imported: {error}") from error
        raise place.error(f"module {name} not found, neither in {folder} nor among the installed packages") from error
    except Exception as error:  # user code may raise any exception
        raise place.error(f"module {name} cannot be imported: {_describe(error)}") from error


def _function(module: ModuleType, name: str, place: KeyPath) -> Callable[..., Any]:
    function = getattr(module, name, None)
    if not callable(function):
        raise place.error(f"module {module.__name__} has no function {name}")
    found: Callable[..., Any] = function
    return found


def _ship(spark: SparkSession, module: ModuleType, folder: Path) -> None:
    """Send the module to executors if it is a file beside the pipeline's file, so that tasks can import it by name."""
    path = Path(module.__file__ or "")
    if path.parent == folder and path.suffix == ".py":
        spark.sparkContext.addPyFile(str(path))


def _frames(made: object, name: str, place: KeyPath) -> Mapping[str | None, DataFrame]:
    from pyspark.sql import DataFrame

    if isinstance(made, DataFrame):
        return {None: made}
    if isinstance(made, Mapping) and made and all(isinstance(frame, DataFrame) for frame in made.values()):
        return {str(key): frame for key, frame in made.items()}
    raise place.error(f"{name} returned a {type(made).__name__}, expected a DataFrame or a dict of DataFrames by name")


def _describe(error: BaseException) -> str:
    """Return the error with its location in the user's code."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{where}"
