"""Call of a Python transform: import of its module, the call, and a check of its result."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from txnframework.config import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def call_python(
    spark: SparkSession, name: str, views: Mapping[str, DataFrame], place: Place
) -> Mapping[str | None, DataFrame]:
    """Return the DataFrames that ``module:function`` makes of the views, by name; a single one has the name None."""
    module_name, _, function_name = name.partition(":")
    beside = Path(place.file or ".").absolute().parent
    function = _function(_imported(module_name, beside, place), function_name, place)
    _ship(spark, sys.modules[module_name], beside)
    try:
        made = function(spark, dict(views))
    except Exception as error:  # user code may raise any exception
        raise place.error(f"{name} failed: {_told(error)}") from error
    return _frames(made, name, place)


def _imported(name: str, beside: Path, place: Place) -> ModuleType:
    if str(beside) not in sys.path:
        sys.path.insert(0, str(beside))
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise place.error(f"module {name} cannot be imported: {error}") from error
        raise place.error(f"there is no module {name}, neither in {beside} nor among what is installed") from error
    except Exception as error:  # user code may raise any exception
        raise place.error(f"module {name} cannot be imported: {_told(error)}") from error


def _function(module: ModuleType, name: str, place: Place) -> Callable[..., Any]:
    function = getattr(module, name, None)
    if not callable(function):
        raise place.error(f"module {module.__name__} has no function {name}")
    found: Callable[..., Any] = function
    return found


def _ship(spark: SparkSession, module: ModuleType, beside: Path) -> None:
    """Send the module to executors if it is a file beside the pipeline's file, so that tasks can import it by name."""
    path = Path(module.__file__ or "")
    if path.parent == beside and path.suffix == ".py":
        spark.sparkContext.addPyFile(str(path))


def _frames(made: object, name: str, place: Place) -> Mapping[str | None, DataFrame]:
    from pyspark.sql import DataFrame

    if isinstance(made, DataFrame):
        return {None: made}
    if isinstance(made, Mapping) and made and all(isinstance(frame, DataFrame) for frame in made.values()):
        return {str(key): frame for key, frame in made.items()}
    raise place.error(f"{name} returned a {type(made).__name__}, expected a DataFrame or a dict of DataFrames by name")


def _told(error: BaseException) -> str:
    """Return the error with its location in the user's code."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{where}"
