"""Conversion of a pipeline's description to Spark options of sources and sink."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from txnframework_spark.pipeline.description import Pipeline, Source, spelled

DEFAULT_CONFIG: Final = "txnframework.toml"
"""The file that ``txnframework`` reads by default, if it exists."""

_STORES: Final = {"config": "[stores] config", "metadata": "[stores] metadata", "ledger": "[stores] ledger"}

OWN_SOURCE_OPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {**_STORES, "subscribe": "subscribe of the source", "groupid": "group_id of the source"}
)
"""Options by lower-case name that the file may not contain as options, and their replacements."""

OWN_SINK_OPTIONS: Final[Mapping[str, str]] = MappingProxyType(
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

OWN_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
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
    return {**spelled(source.options), **store_options(pipeline), **given}


def sink_options(pipeline: Pipeline, stateful: bool, reset: bool = False) -> dict[str, str]:
    """Return the options of the one sink; rows name their topics. A value in the file overrides ``stateful``.

    So the guard of a stateful plan is on by default. A sink without transactions gets no options of transactions.
    """
    given = {name: value for sink in pipeline.sinks for name, value in spelled(sink.options).items()}
    lower = {name.lower(): value.lower() for name, value in given.items()}
    if lower.get("transactional") == "false":
        return {**given, **store_options(pipeline)}
    if "txnappstateful" not in lower:
        given["txnAppStateful"] = str(stateful).lower()
    names = {"txnAppId": pipeline.pipeline.name, "txnAppReset": str(reset).lower()}
    return {**given, **store_options(pipeline), **names}
