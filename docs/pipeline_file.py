"""Prints the reference of ``pipeline.toml``, made from the types of its tables: ``python docs/pipeline_file.py``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import msgspec
from msgspec.structs import FieldInfo

from txnframework_spark.pipeline.description import (
    PipelineTable,
    Sink,
    Source,
    SparkTable,
    StoresTable,
    Table,
    Transform,
    Watermark,
)

_HEAD: Final = """\
# Pipeline file

This page describes the file that `txnframework pipeline run`, `validate` and `status` read. [The
tutorial](../tutorial/exactly-once-pipeline.md) starts with an example. Relative paths are relative to the working
folder. `options` are the options of [source and sink](spark-options.md), by their names there. If the file has a key
for an option, the option is refused in `options`. An unknown key is an error, which names the most similar known key.

`validate` runs no code that the file names. `transform.sql` is one query: Spark parses and analyses it. Both
`validate` and `run` refuse commands, such as INSERT, CREATE, SET, ADD JAR or a script. `validate` searches the
function of `transform.python` in the source of its module, and does not import the module. So only `run` shows the
result of the function, and whether this result needs state. Of `spark.conf`, `validate` uses only settings that
change how a query is parsed. It connects to the stores that the file names, and starts its own Spark. `run` executes
code that the author of the file chose.
"""

_TABLES: Final[tuple[tuple[str, type[Table]], ...]] = (
    ("[pipeline]", PipelineTable),
    ("[spark]", SparkTable),
    ("[stores]", StoresTable),
    ("[[sources]]", Source),
    ("sources.watermark", Watermark),
    ("[transform]", Transform),
    ("[[sinks]]", Sink),
)

_NAMES: Final = {str: "text", bool: "true or false", int: "number", float: "number"}


def page() -> str:
    """Return the page, in Markdown."""
    return "\n".join([_HEAD, *_sections()])


def _sections() -> Iterator[str]:
    for title, kind in _TABLES:
        yield f"## `{title}`\n"
        yield f"{(kind.__doc__ or '').strip()}\n".replace("``", "`")
        yield "| key | value | default | meaning |"
        yield "|---|---|---|---|"
        for field in msgspec.structs.fields(kind):
            yield _row(field)
        yield ""


def _row(field: FieldInfo) -> str:
    meaning = _described(field.type).replace("|", "\\|")
    return f"| `{field.encode_name}` | {_kind(field.type)} | {_default(field)} | {meaning} |"


def _described(annotation: Any) -> str:
    return next((found.description or "" for found in _metas(annotation) if found.description), "")


def _metas(annotation: Any) -> Iterator[msgspec.Meta]:
    if get_origin(annotation) is Annotated:
        yield from (found for found in get_args(annotation)[1:] if isinstance(found, msgspec.Meta))


def _kind(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{one}`" for one in arguments)
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)):
        return "table"
    if origin is list:
        return f"array of {_kind(arguments[0])}"
    if arguments:
        return " or ".join(dict.fromkeys(_kind(one) for one in arguments if one is not type(None)))
    return _NAMES[annotation]


def _default(field: FieldInfo) -> str:
    if field.required:
        return "*required*"
    default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return "" if default in (None, {}) else f"`{default}`"


if __name__ == "__main__":
    sys.stdout.write(page())
