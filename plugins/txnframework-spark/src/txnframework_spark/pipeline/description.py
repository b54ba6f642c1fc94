"""The content of ``pipeline.toml``: every value is typed and described, as the reference shows it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from txnframework.config import redact_url

OptionValue = str | bool | int | float
"""An option's value in TOML; Spark takes text."""

Text = Annotated[str, Meta(min_length=1)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
FunctionName = Annotated[str, Meta(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]

_DURATION: Final = re.compile(r"\d+(\.\d+)? (milli|micro)?(second|minute|hour|day|week)s?")


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file."""


class PipelineTable(Table, frozen=True, kw_only=True):
    """The name, checkpoint and trigger of the pipeline."""

    name: Annotated[
        Text,
        Meta(description="The application, independent of checkpoints: the sink's txnAppId. Do not reuse it."),
    ]
    checkpoint: Annotated[
        Text,
        Meta(
            description="Folder or URL of Spark's checkpoint. A stateful pipeline on a cluster needs one that all"
            " machines can reach.",
        ),
    ]
    trigger: Annotated[
        Literal["processing_time", "available_now", "continuous"],
        Meta(
            description="processing_time runs until it is stopped. available_now ends when all messages that were"
            " stored at its start are read. continuous is refused, because it has no batches that could be committed."
        ),
    ] = "processing_time"
    interval: Annotated[
        str, Meta(description="The time between the starts of batches, for processing_time. 0: no delay.")
    ] = "0 seconds"
    stop_timeout_ms: Annotated[
        int, Meta(ge=0, description="How long the current batch may take to finish after a stop request.")
    ] = 30_000

    def __post_init__(self) -> None:
        """Reject triggers that cannot be exactly once, and intervals that Spark cannot parse."""
        if self.trigger == "continuous":
            raise ValueError(
                "trigger continuous has no batches that could be committed; use processing_time, with interval"
                ' "0 seconds" for the lowest latency'
            )
        if not _DURATION.fullmatch(self.interval):
            raise ValueError(f'interval {self.interval!r} is not a duration such as "10 seconds"')


class SparkTable(Table, frozen=True, kw_only=True):
    """The Spark master and its settings."""

    master: Annotated[
        Text, Meta(description="For example local[2], or spark://host:7077 for the master of a cluster.")
    ] = "local[*]"
    log_level: Annotated[
        Literal["ALL", "TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL", "OFF"],
        Meta(description="The level of Spark's own log."),
    ] = "WARN"
    conf: Annotated[dict[str, OptionValue], Meta(description="Spark's own settings, by name.")] = {}

    def __repr__(self) -> str:
        """Return the table without the values of settings, because some are secret."""
        return f"{type(self).__name__}(master={self.master!r}, conf={sorted(self.conf)!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return the items that ``repr`` shows; by default rich prints all fields."""
        return [("master", self.master), ("conf", sorted(self.conf))]


class StoresTable(Table, frozen=True, kw_only=True):
    """The stores of the topics. Without this table, ``./txnframework.toml`` names them, as for all commands."""

    config: Annotated[
        str | None,
        Meta(description="A configuration file of txnframework. It is sent to the executors of a cluster."),
    ] = None
    metadata: Annotated[str | None, Meta(description="The URL of the metadata store, instead of config.")] = None
    ledger: Annotated[
        str | None, Meta(description="The URL of the ledger store. The default is the value of metadata.")
    ] = None

    def __post_init__(self) -> None:
        """Reject contradictory or incomplete locations of the stores."""
        if self.config is not None and (self.metadata is not None or self.ledger is not None):
            raise ValueError("config already names the stores; remove metadata and ledger")
        if self.ledger is not None and self.metadata is None:
            raise ValueError("ledger requires metadata; set metadata as well, or config instead of both")

    def __repr__(self) -> str:
        """Return the table without passwords."""
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return the items that ``repr`` shows; by default rich prints all fields."""
        urls = {"metadata": self.metadata, "ledger": self.ledger}
        shown = [(name, None if url is None else redact_url(url)) for name, url in urls.items()]
        return [("config", self.config), *shown]


class Watermark(Table, frozen=True, kw_only=True):
    """How late a row may be, for aggregations over time. Spark drops later rows."""

    column: Annotated[Text, Meta(description="A column of the source with a timestamp.")]
    delay: Annotated[str, Meta(description='For example "10 minutes".')]

    def __post_init__(self) -> None:
        """Reject a delay that Spark cannot parse."""
        if not _DURATION.fullmatch(self.delay):
            raise ValueError(f'delay {self.delay!r} is not a duration such as "10 minutes"')


class Source(Table, frozen=True, kw_only=True):
    """Topics to read. Each source is a temporary view in SQL, and a DataFrame in Python, under the name ``view``."""

    view: Annotated[Name, Meta(description="The name of the source in SQL and Python.")]
    subscribe: Annotated[
        str | list[str] | None,
        Meta(description="One topic or several. Alternatively, set subscribePattern or assign in options."),
    ] = None
    group_id: Annotated[
        Text | None,
        Meta(
            description="The subscription that is acknowledged in the sinks' transaction. Without it only the"
            " checkpoint records what was read.",
        ),
    ] = None
    watermark: Annotated[
        Watermark | None, Meta(description="For aggregations and joins over time; see `sources.watermark` below.")
    ] = None
    options: Annotated[
        dict[str, OptionValue], Meta(description="Further options of the source, by their Spark names.")
    ] = {}


class Transform(Table, frozen=True, kw_only=True):
    """The transformation of rows. Without this table, the sinks write the rows of a single source unchanged."""

    sql: Annotated[Text | None, Meta(description="A query over the views.")] = None
    python: Annotated[
        FunctionName | None,
        Meta(
            description="module:function. The function gets the session and a dict of DataFrames by view. It returns"
            " a DataFrame, or a dict of DataFrames, which sinks select by frame. The module is searched in the folder"
            " of the file first.",
        ),
    ] = None

    def __post_init__(self) -> None:
        """Require exactly one of ``sql`` and ``python``."""
        if (self.sql is None) == (self.python is None):
            raise ValueError("expected either sql or python")


class Sink(Table, frozen=True, kw_only=True):
    """A topic to write, or several. All sinks together are one query, with one transaction for each batch."""

    topic: Annotated[
        Text | None, Meta(description="The topic. Without it, the column topic names the topic of each row.")
    ] = None
    frame: Annotated[Text | None, Meta(description="The name of a DataFrame that the Python function returns.")] = None
    where: Annotated[Text | None, Meta(description="A condition in SQL that selects rows.")] = None
    key: Annotated[Text | None, Meta(description="The key, in SQL.  [default: column key, if any]")] = None
    value: Annotated[Text | None, Meta(description="The value, in SQL.  [default: column value]")] = None
    headers: Annotated[Text | None, Meta(description="The headers, in SQL.  [default: column headers, if any]")] = None
    options: Annotated[
        dict[str, OptionValue],
        Meta(description="Further options of the sink, by their Spark names; they apply to all sinks together."),
    ] = {}


class Pipeline(Table, frozen=True, kw_only=True):
    """A pipeline: sources, a transformation, and sinks."""

    pipeline: PipelineTable
    sources: Annotated[tuple[Source, ...], Meta(description="At least one.")]
    sinks: Annotated[tuple[Sink, ...], Meta(description="At least one.")]
    spark: SparkTable = SparkTable()
    stores: StoresTable = StoresTable()
    transform: Transform | None = None


def option_texts(options: Mapping[str, OptionValue]) -> dict[str, str]:
    """Return options as text, in Spark's spelling."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
