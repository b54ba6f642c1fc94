"""Options of ``readStream`` and ``writeStream``, typed and checked; their names follow Spark's Kafka source and sink.

Both take ``config`` (the path of a TOML file as ``txnframework`` reads it), or ``metadata`` and ``ledger`` (the URLs of
the stores; without ``ledger`` both live in one place), or neither for the embedded default. Names are matched without
regard to case, as everywhere in Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from txnframework.errors import InvalidName
from txnframework.model.names import TOPIC, TopicName
from txnframework.model.reading import Isolation
from txnframework_spark.errors import InvalidOption, UnknownOption

_SPARK_OWN: Final = frozenset({"checkpointlocation", "queryname"})
"""What Spark itself puts among a sink's options."""

_STORE: Final = ("config", "metadata", "ledger")
_SOURCE: Final = (
    *_STORE,
    "subscribe",
    "groupId",
    "startingOffsets",
    "maxOffsetsPerTrigger",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "isolationLevel",
    "includeHeaders",
    "takeOverTimeoutMs",
)
_SINK: Final = (*_STORE, "topic", "txnAppId", "txnAppReset", "txnAppStateful", "transactionTimeoutMs")

STARTS: Final = ("earliest", "latest")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Where the stores are; hashable, so that a process opens each once."""

    config: str | None = None
    metadata: str | None = None
    ledger: str | None = None

    def source(self) -> str | dict[str, object] | None:
        """Return what ``txnframework.config.load_config`` takes."""
        if self.config is not None:
            return self.config
        if self.metadata is None:
            return None
        table: dict[str, object] = {"metadata": {"url": self.metadata}}
        if self.ledger is not None:
            table["ledger"] = {"url": self.ledger}
        return table


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of ``readStream``.

    ``group_id`` None: nothing is acknowledged, the checkpoint alone decides. ``starting_offsets``: where a query
    without ``group_id``, or a subscription that is not there yet, begins. ``max_offsets_per_trigger``: messages of one
    micro-batch over all segments, exceeded only to finish an entry.
    """

    stores: StoreOptions
    topics: tuple[TopicName, ...]
    group_id: str | None = None
    starting_offsets: str = "latest"
    max_offsets_per_trigger: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    isolation: Isolation = Isolation.READ_COMMITTED
    include_headers: bool = False
    take_over_timeout_ms: int = 60_000

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Return the options in ``given``; InvalidOption or UnknownOption in one sentence."""
        options = _Options(given, _SOURCE, "a txnframework source")
        group_id = options.text("groupId")
        isolation = Isolation(
            options.one_of("isolationLevel", tuple(level.value for level in Isolation), "read_committed")
        )
        if group_id is not None and isolation is Isolation.READ_UNCOMMITTED:
            raise InvalidOption(
                "isolationLevel", "read_uncommitted goes without groupId: what is not decided cannot be acknowledged"
            )
        return cls(
            stores=options.stores(),
            topics=_topics(options.required("subscribe", "the topics to read, separated by commas")),
            group_id=group_id,
            starting_offsets=options.one_of("startingOffsets", STARTS, "latest"),
            max_offsets_per_trigger=options.number("maxOffsetsPerTrigger"),
            max_records_per_partition=options.number("maxRecordsPerPartition"),
            fail_on_data_loss=options.flag("failOnDataLoss", True),
            isolation=isolation,
            include_headers=options.flag("includeHeaders", False),
            take_over_timeout_ms=options.number("takeOverTimeoutMs") or 60_000,
        )


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Options of ``writeStream``.

    ``topic`` None: each row's column ``topic`` names it. ``application_id`` None: the query id. ``reset``: a new query
    may take over an application id of which nothing can be judged. ``stateful``: the plan keeps state in the
    checkpoint, so that a query without that state is refused.
    """

    stores: StoreOptions
    topic: TopicName | None = None
    application_id: str | None = None
    reset: bool = False
    stateful: bool = False
    transaction_timeout_ms: int = 600_000

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SinkOptions:
        """Return the options in ``given``; InvalidOption or UnknownOption in one sentence."""
        options = _Options(given, _SINK, "a txnframework sink")
        topic = options.text("topic")
        return cls(
            stores=options.stores(),
            topic=None if topic is None else topic_of("topic", topic),
            application_id=options.text("txnAppId"),
            reset=options.flag("txnAppReset", False),
            stateful=options.flag("txnAppStateful", False),
            transaction_timeout_ms=options.number("transactionTimeoutMs") or 600_000,
        )


def topic_of(option: str, text: str) -> TopicName:
    """Return the scalable topic that ``text`` names, or raise InvalidOption."""
    try:
        topic = TopicName.parse(text.strip())
    except InvalidName as error:
        raise InvalidOption(option, str(error)) from error
    if topic.domain != TOPIC:
        raise InvalidOption(option, f"{topic} is not a topic:// topic; only those can be read and written by Spark")
    return topic


def _topics(text: str) -> tuple[TopicName, ...]:
    topics = tuple(topic_of("subscribe", name) for name in text.split(",") if name.strip())
    if len(set(topics)) != len(topics):
        raise InvalidOption("subscribe", "it names a topic twice")
    return topics


class _Options:
    """Options by lower-case name, with the spelling that errors use."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...], where: str) -> None:
        lower = {name.lower(): name for name in known}
        for name in given:
            if name.lower() not in lower and name.lower() not in _SPARK_OWN:
                raise UnknownOption(name, known, where)
        self._given = {name.lower(): value for name, value in given.items()}

    def text(self, name: str) -> str | None:
        value = self._given.get(name.lower())
        if value is not None and not value.strip():
            raise InvalidOption(name, "it is empty")
        return value

    def required(self, name: str, meaning: str) -> str:
        value = self.text(name)
        if value is None:
            raise InvalidOption(name, f"it is missing; it names {meaning}")
        return value

    def one_of(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in allowed:
            raise InvalidOption(name, f"{value!r} is not one of {', '.join(allowed)}")
        return value.lower()

    def number(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not value.strip().isdecimal() or int(value) < 1:
            raise InvalidOption(name, f"{value!r} is not a whole number of at least 1")
        return int(value)

    def flag(self, name: str, default: bool) -> bool:
        return self.one_of(name, ("true", "false"), str(default).lower()) == "true"

    def stores(self) -> StoreOptions:
        stores = StoreOptions(self.text("config"), self.text("metadata"), self.text("ledger"))
        if stores.config is not None and (stores.metadata or stores.ledger):
            raise InvalidOption("config", "the file names the stores already; leave metadata and ledger out")
        if stores.ledger is not None and stores.metadata is None:
            raise InvalidOption("ledger", "it needs the option metadata beside it")
        return stores
