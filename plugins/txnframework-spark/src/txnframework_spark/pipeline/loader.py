"""A pipeline from its file: one error message with the reason and the place, and the Spark options that it makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

from txnframework.config import KeyPath, decode, parse_toml
from txnframework.errors import InvalidInput
from txnframework_spark.options.parser import parse_topic
from txnframework_spark.options.sink import SinkOptions
from txnframework_spark.options.source import SourceOptions
from txnframework_spark.pipeline.description import Pipeline, Source, option_texts
from txnframework_spark.session import is_local

DEFAULT_CONFIG: Final = "txnframework.toml"
"""The file that ``txnframework`` reads by default, if it exists."""

_STORES: Final = {"config": "[stores] config", "metadata": "[stores] metadata", "ledger": "[stores] ledger"}

RESERVED_SOURCE_OPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {**_STORES, "subscribe": "subscribe of the source", "groupid": "group_id of the source"}
)
"""Options by lower-case name that the file may not contain as options, and their replacements."""

RESERVED_SINK_OPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **_STORES,
        "topic": "topic of the sink",
        "checkpointlocation": "[pipeline] checkpoint",
        "queryname": "[pipeline] name",
        "txnappid": "[pipeline] name",
        "txnappreset": "the option --reset of 'txnframework pipeline run', for one start",
    }
)
"""The same for options of sinks."""

RESERVED_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {"spark.master": "[spark] master", "spark.app.name": "[pipeline] name"}
)
"""The same for Spark's settings."""


def config_file(pipeline: Pipeline) -> Path | None:
    """Return the configuration file that is named, or the default one if it exists; None: URLs, or neither."""
    if pipeline.stores.config is not None:
        return Path(pipeline.stores.config)
    default = Path(DEFAULT_CONFIG)
    return default if pipeline.stores.metadata is None and default.exists() else None


def store_options(pipeline: Pipeline) -> dict[str, str]:
    """Return the options for the location of the stores."""
    config = config_file(pipeline)
    if config is not None:
        return {"config": str(config.absolute())}
    given = {"metadata": pipeline.stores.metadata, "ledger": pipeline.stores.ledger}
    return {name: url for name, url in given.items() if url is not None}


def source_options(pipeline: Pipeline, source: Source) -> dict[str, str]:
    """Return the options of a source."""
    names = source.subscribe
    named = {
        "subscribe": names if isinstance(names, str) or names is None else ",".join(names),
        "groupId": source.group_id,
    }
    given = {name: value for name, value in named.items() if value is not None}
    return {**option_texts(source.options), **store_options(pipeline), **given}


def sink_options(pipeline: Pipeline, stateful: bool, reset: bool = False) -> dict[str, str]:
    """Return the options of the one sink; rows name their topics. A value in the file overrides ``stateful``.

    So the guard of a stateful plan is on by default. A sink without transactions gets no options of transactions.
    """
    given = {name: value for sink in pipeline.sinks for name, value in option_texts(sink.options).items()}
    lower = {name.lower(): value.lower() for name, value in given.items()}
    if lower.get("transactional") == "false":
        return {**given, **store_options(pipeline)}
    if "txnappstateful" not in lower:
        given["txnAppStateful"] = str(stateful).lower()
    names = {"txnAppId": pipeline.pipeline.name, "txnAppReset": str(reset).lower()}
    return {**given, **store_options(pipeline), **names}


R = TypeVar("R")


def load_pipeline(path: Path) -> Pipeline:
    """Return the pipeline in a file; ConfigurationError names the file, the table and the allowed values."""
    top = KeyPath(file=str(path))
    pipeline = decode(parse_toml(path), Pipeline, top)
    check_pipeline(pipeline, top)
    return pipeline


def check_pipeline(pipeline: Pipeline, top: KeyPath) -> None:
    """Raise ConfigurationError for the first inconsistency; opens nothing."""
    if not pipeline.sources:
        raise (top / "sources").error("is empty; a pipeline needs at least one source")
    if not pipeline.sinks:
        raise (top / "sinks").error("is empty; a pipeline needs at least one sink")
    _check_sources(pipeline, top / "sources")
    _check_sinks(pipeline, top / "sinks")
    _check_reserved(pipeline.spark.conf, RESERVED_SETTINGS, top / "spark" / "conf")
    if not is_local(pipeline.spark.master) and not store_options(pipeline):
        raise (top / "stores").error(
            f"is missing: on {pipeline.spark.master}, the driver and each executor would use stores in their own"
            " folders; set a configuration file, or URLs that all of them can reach"
        )
    if pipeline.transform is None and len(pipeline.sources) > 1:
        raise (top / "transform").error("is missing: a pipeline with several sources needs a transform")


def _check_sources(pipeline: Pipeline, sources: KeyPath) -> None:
    seen: dict[str, int] = {}
    read_by: dict[tuple[str, str], int] = {}
    for index, source in enumerate(pipeline.sources):
        place = sources.at(index)
        first = seen.setdefault(source.view.lower(), index)
        if first != index:
            raise (place / "view").error(f"{source.view!r} is already the view of sources[{first}]")
        _check_reserved(source.options, RESERVED_SOURCE_OPTIONS, place / "options")
        read = _checked(partial(parsed_source, pipeline, source), place)
        for topic in () if source.group_id is None else map(str, read.topics):
            first = read_by.setdefault((topic, source.group_id or ""), index)
            if first != index:
                raise (place / "group_id").error(
                    f"sources[{first}] already reads {topic} with {source.group_id!r}, and messages that one"
                    " acknowledges would count as read by the other; give each source its own group_id, or read the"
                    " topic once and use the view twice"
                )


def _check_sinks(pipeline: Pipeline, sinks: KeyPath) -> None:
    given: dict[str, tuple[str, int]] = {}
    for index, sink in enumerate(pipeline.sinks):
        place = sinks.at(index)
        _check_reserved(sink.options, RESERVED_SINK_OPTIONS, place / "options")
        if sink.topic is not None:
            _checked(partial(parse_topic, "topic", sink.topic), place)
        if sink.frame is not None and (pipeline.transform is None or pipeline.transform.python is None):
            raise (place / "frame").error("requires transform.python, whose function returns DataFrames by name")
        for name, value in sink.options.items():
            before, first = given.setdefault(name.lower(), (str(value), index))
            if before != str(value):
                raise (place / "options" / name).error(
                    f"sinks[{first}] has a different value, and all sinks belong to one query; set it once"
                )
    _checked(partial(SinkOptions.of_stream, sink_options(pipeline, stateful=False)), sinks)


def _checked(parse: Callable[[], R], place: KeyPath) -> R:
    try:
        return parse()
    except InvalidInput as error:
        raise place.error(str(error)) from error


def _check_reserved(options: Iterable[str], own: Mapping[str, str], place: KeyPath) -> None:
    for name in options:
        instead = own.get(name.lower())
        if instead is not None:
            raise (place / name).error(f"cannot be set here; use {instead}")


def parsed_source(pipeline: Pipeline, source: Source) -> SourceOptions:
    """Return the parsed options of a source."""
    return SourceOptions.parse(source_options(pipeline, source)).for_stream()
