"""Conversion of a file to a consistent description, or one error message with the reason and the place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from txnframework.config import Place, decode, parse_toml
from txnframework.errors import InvalidInput
from txnframework_spark.options.given import topic_of
from txnframework_spark.options.sink import SinkOptions
from txnframework_spark.options.source import SourceOptions
from txnframework_spark.pipeline.description import Pipeline, Source
from txnframework_spark.pipeline.options import (
    OWN_SETTINGS,
    OWN_SINK_OPTIONS,
    OWN_SOURCE_OPTIONS,
    sink_options,
    source_options,
    store_options,
)
from txnframework_spark.session import is_local

R = TypeVar("R")


def load_pipeline(path: Path) -> Pipeline:
    """Return the pipeline in a file; ConfigurationError names the file, the table and the allowed values."""
    top = Place(file=str(path))
    pipeline = decode(parse_toml(path), Pipeline, top)
    check_pipeline(pipeline, top)
    return pipeline


def check_pipeline(pipeline: Pipeline, top: Place) -> None:
    """Raise ConfigurationError for the first inconsistency; opens nothing."""
    if not pipeline.sources:
        raise (top / "sources").error("is empty; a pipeline reads something")
    if not pipeline.sinks:
        raise (top / "sinks").error("is empty; a pipeline writes something")
    _check_sources(pipeline, top / "sources")
    _check_sinks(pipeline, top / "sinks")
    _refuse_own(pipeline.spark.conf, OWN_SETTINGS, top / "spark" / "conf")
    if not is_local(pipeline.spark.master) and not store_options(pipeline):
        raise (top / "stores").error(
            f"is missing: on {pipeline.spark.master}, driver and executors would each look for stores in a folder of"
            " their own; name a configuration file, or URLs that all of them reach"
        )
    if pipeline.transform is None and len(pipeline.sources) > 1:
        raise (top / "transform").error("is missing: with several sources, something has to say what becomes of them")


def _check_sources(pipeline: Pipeline, sources: Place) -> None:
    seen: dict[str, int] = {}
    read_by: dict[tuple[str, str], int] = {}
    for index, source in enumerate(pipeline.sources):
        place = sources.at(index)
        first = seen.setdefault(source.view.lower(), index)
        if first != index:
            raise (place / "view").error(f"{source.view!r} is the view of sources[{first}] already")
        _refuse_own(source.options, OWN_SOURCE_OPTIONS, place / "options")
        read = _checked(partial(parsed_source, pipeline, source), place)
        for topic in () if source.group_id is None else map(str, read.topics):
            first = read_by.setdefault((topic, source.group_id or ""), index)
            if first != index:
                raise (place / "group_id").error(
                    f"sources[{first}] reads {topic} with {source.group_id!r} already, and what one of them read would"
                    " count as read by the other; give each its own, or read it once and use the view twice"
                )


def _check_sinks(pipeline: Pipeline, sinks: Place) -> None:
    given: dict[str, tuple[str, int]] = {}
    for index, sink in enumerate(pipeline.sinks):
        place = sinks.at(index)
        _refuse_own(sink.options, OWN_SINK_OPTIONS, place / "options")
        if sink.topic is not None:
            _checked(partial(topic_of, "topic", sink.topic), place)
        if sink.frame is not None and (pipeline.transform is None or pipeline.transform.python is None):
            raise (place / "frame").error("goes with transform.python only, whose function returns DataFrames by name")
        for name, value in sink.options.items():
            before, first = given.setdefault(name.lower(), (str(value), index))
            if before != str(value):
                raise (place / "options" / name).error(
                    f"sinks[{first}] has another value for it, and all sinks are one query; give it once"
                )
    _checked(partial(SinkOptions.of_stream, sink_options(pipeline, stateful=False)), sinks)


def _checked(parse: Callable[[], R], place: Place) -> R:
    try:
        return parse()
    except InvalidInput as error:
        raise place.error(str(error)) from error


def _refuse_own(options: Iterable[str], own: Mapping[str, str], place: Place) -> None:
    for name in options:
        instead = own.get(name.lower())
        if instead is not None:
            raise (place / name).error(f"stands elsewhere in this file: {instead}")


def parsed_source(pipeline: Pipeline, source: Source) -> SourceOptions:
    """Return the parsed options of a source."""
    return SourceOptions.parse(source_options(pipeline, source)).for_stream()
