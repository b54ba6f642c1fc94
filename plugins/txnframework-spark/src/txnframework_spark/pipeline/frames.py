"""The Spark session of a pipeline, and the one DataFrame that it writes: views, the transform, and all sinks in one."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from txnframework.config import KeyPath
from txnframework.errors import ConfigurationError
from txnframework_spark.errors import describe_error
from txnframework_spark.pipeline.description import Pipeline, Sink, Source, option_texts
from txnframework_spark.pipeline.loader import config_file, source_options
from txnframework_spark.pipeline.python_transform import call_function
from txnframework_spark.session import LOCAL_CHECKPOINT, is_local, scratch_folder, spark_session

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


ANALYSING: Mapping[str, str] = {"spark.ui.enabled": "false", "spark.master": "local[1]"}
"""Settings of a session that only analyses."""

_HARMLESS = ("spark.driver.memory", "spark.sql.caseSensitive", "spark.sql.shuffle.partitions", "spark.ui.enabled")
_HARMLESS_BELOW = ("spark.sql.ansi.", "spark.sql.session.", "spark.sql.legacy.", "spark.sql.timestampType")


def is_harmless(setting: str) -> bool:
    """Return whether a setting only changes how queries are parsed; others may load jars, packages or classes."""
    return setting in _HARMLESS or setting.startswith(_HARMLESS_BELOW)


@contextlib.contextmanager
def open_session(
    pipeline: Pipeline, log: Path | None, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """
    Provide the session of a pipeline until the block ends.

    :param log: the file for the output of Spark and of all processes that it starts; None: standard error.
    :param settings: settings that override the pipeline's own.
    :raises JavaUnusable: no usable Java is installed.
    """
    wanted = {
        "spark.master": pipeline.spark.master,
        "spark.app.name": pipeline.pipeline.name,
        "spark.ui.showConsoleProgress": "false",
        **({} if "://" in pipeline.pipeline.checkpoint else LOCAL_CHECKPOINT),
        **option_texts(pipeline.spark.conf),
        **(settings or {}),
    }
    config = None if is_local(wanted["spark.master"]) else config_file(pipeline)
    with contextlib.ExitStack() as stack:
        shipped = None if config is None else stack.enter_context(_copy_of(config))
        session = stack.enter_context(spark_session(wanted, log))
        session.sparkContext.setLogLevel(pipeline.spark.log_level)
        if shipped is not None:
            session.sparkContext.addFile(str(shipped))
        yield session


@contextlib.contextmanager
def _copy_of(config: Path) -> Iterator[Path]:
    """Provide a private copy: the driver sends it to every executor that starts, even after the file is edited."""
    with scratch_folder("txnframework-config-") as folder:
        yield Path(shutil.copyfile(config, folder / config.name))


R = TypeVar("R")

_TYPES: Final = {
    "topic": "STRING",
    "key": "BINARY",
    "value": "BINARY",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
}
"""The type of each column that a sink accepts."""

_TEXT: Final = ("string", "binary")


def build_output(spark: SparkSession, pipeline: Pipeline, file: Path) -> DataFrame:
    """Return all rows that the pipeline writes, each with its topic.

    Nothing is read, only analysed; but a Python transform is called. The views remain registered in the session.

    :raises ConfigurationError: the pipeline's description is invalid.
    """
    top = KeyPath(file=str(file))
    views = create_views(spark, pipeline, top)
    made = _transformed(spark, pipeline, views, top)
    parts = [
        _written(frame, [(pipeline.sinks[index], (top / "sinks").at(index)) for index in indexes])
        for frame, indexes in _sinks_by_frame(pipeline, made, top)
    ]
    whole = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)
    if not whole.isStreaming:
        raise (top / "transform").error("does not return a stream: its result uses none of the sources")
    return whole


def create_views(spark: SparkSession, pipeline: Pipeline, top: KeyPath) -> dict[str, DataFrame]:
    """Return the DataFrames of the sources by view; the views remain registered in the session."""
    return {
        source.view: _view(spark, pipeline, source, (top / "sources").at(index))
        for index, source in enumerate(pipeline.sources)
    }


def _view(spark: SparkSession, pipeline: Pipeline, source: Source, place: KeyPath) -> DataFrame:
    reader = spark.readStream.format("txnframework").options(**source_options(pipeline, source))
    frame = _analysed(reader.load, place)
    if source.watermark is not None:
        marked = source.watermark
        frame = _analysed(partial(_marked, frame, marked.column, marked.delay), place / "watermark")
    frame.createOrReplaceTempView(source.view)
    return frame


def _marked(frame: DataFrame, column: str, delay: str) -> DataFrame:
    marked = frame.withWatermark(column, delay)
    marked.schema  # noqa: B018 - Spark resolves the column only here
    return marked


def _transformed(
    spark: SparkSession, pipeline: Pipeline, views: Mapping[str, DataFrame], top: KeyPath
) -> Mapping[str | None, DataFrame]:
    """Return DataFrames by the names that sinks refer to; a single one has the name None."""
    transform = pipeline.transform
    if transform is None:
        (only,) = views.values()
        return {None: only}
    if transform.sql is not None:
        return {None: _query(spark, transform.sql, top / "transform" / "sql")}
    assert transform.python is not None
    return call_function(spark, transform.python, views, top / "transform" / "python")


def _query(spark: SparkSession, text: str, place: KeyPath) -> DataFrame:
    """
    Return the DataFrame of a query.

    Spark executes commands as soon as it gets them: INSERT, CREATE, SET, ADD JAR, a script. Within parentheses its
    grammar accepts only one query, so a text that parses here has no effect before the query is started.
    """
    from pyspark.errors import ParseException

    inner = text.rstrip().rstrip(";")
    try:
        return _analysed(lambda: spark.sql(f"SELECT * FROM (\n{inner}\n)"), place)  # noqa: S608 - it is the file's query
    except ConfigurationError as error:
        if not isinstance(error.__cause__, ParseException):
            raise
        hint = "expected one query, which begins with SELECT, WITH, FROM, VALUES or TABLE; commands are not allowed"
        raise place.error(f"{error.reason}; {hint}") from error.__cause__


def _sinks_by_frame(
    pipeline: Pipeline, made: Mapping[str | None, DataFrame], top: KeyPath
) -> Sequence[tuple[DataFrame, list[int]]]:
    """Return each DataFrame with the indexes of the sinks that write it, so that each is read once."""
    found: dict[str | None, list[int]] = {name: [] for name in made}
    for index, sink in enumerate(pipeline.sinks):
        name = None if None in made else sink.frame or sink.topic
        if name not in found or (None in made and sink.frame is not None):
            there = "only one, without a name" if None in made else ", ".join(sorted(map(str, made)))
            place = (top / "sinks").at(index) / "frame"
            raise place.error(f"no DataFrame is named {sink.frame or sink.topic!r} (the function returns {there})")
        found[name].append(index)
    for name, indexes in found.items():
        if not indexes:
            raise (top / "sinks").error(f"no sink has frame {name!r}, so this DataFrame would not be written")
    return [(made[name], indexes) for name, indexes in found.items()]


def _written(frame: DataFrame, sinks: Sequence[tuple[Sink, KeyPath]]) -> DataFrame:
    """Return the rows of a DataFrame for all its sinks, in one pass; a union would read the input again."""
    from pyspark.sql import functions as f

    columns = [_columns(frame, sink, place) for sink, place in sinks]
    names = [name for name in _TYPES if any(name in one for one in columns)]
    if len(sinks) == 1:
        condition = sinks[0][0].where
        kept = frame if condition is None else frame.where(condition)
        return kept.select(*(columns[0][name].alias(name) for name in names))
    outputs = []
    for (sink, _), mine in zip(sinks, columns, strict=True):
        row = f.struct(*((mine[name] if name in mine else _nothing(name)).alias(name) for name in names))
        outputs.append(row if sink.where is None else f.when(f.expr(sink.where), row))
    exploded = frame.select(f.explode(f.array_compact(f.array(*outputs))).alias("output"))
    return exploded.select(*(f.col("output")[name].alias(name) for name in names))


def _columns(frame: DataFrame, sink: Sink, place: KeyPath) -> dict[str, Column]:
    """Return the columns that a sink writes, in the types that it accepts."""
    from pyspark.sql import functions as f

    there = {name.lower() for name in frame.columns}
    found = {}
    for name in ("key", "value", "headers"):
        text: str | None = getattr(sink, name)
        if text is not None or name in there:
            found[name] = _typed(frame, name, text if text is not None else name, place / name)
        elif name == "value":
            columns = ", ".join(frame.columns)
            raise (place / name).error(f"is missing, and there is no column value (only {columns})")
    if sink.topic is not None:
        found["topic"] = f.lit(sink.topic.strip())
    elif "topic" in there:
        found["topic"] = _typed(frame, "topic", "topic", place / "topic")
    else:
        raise (place / "topic").error("is missing, and there is no column topic")
    if sink.where is not None:
        _analysed(lambda: frame.where(str(sink.where)).schema, place / "where")
    return found


def _typed(frame: DataFrame, name: str, text: str, place: KeyPath) -> Column:
    from pyspark.sql import functions as f

    column = _analysed(lambda: f.expr(text), place)
    kind = _analysed(lambda: frame.select(column).schema[0].dataType.simpleString(), place)
    if name != "headers" and kind not in _TEXT:
        hint = "use to_json(...)" if kind.startswith(("struct", "map", "array")) else "cast it to string"
        raise place.error(f"has type {kind}, but {name} must be a string or binary: {hint}")
    typed = column.cast(_TYPES[name])
    _analysed(lambda: frame.select(typed).schema, place)
    return typed


def _nothing(name: str) -> Column:
    from pyspark.sql import functions as f

    return f.lit(None).cast(_TYPES[name])


def _analysed(work: Callable[[], R], place: KeyPath) -> R:
    """Return the result of ``work``; an error of Spark becomes a ConfigurationError at ``place``."""
    from pyspark.errors import PySparkException

    try:
        return work()
    except ConfigurationError:
        raise
    except PySparkException as error:
        raise place.error(describe_error(error)) from error
