"""Options of ``readStream``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from txnframework.model.names import TopicName
from txnframework.model.reading import Isolation
from txnframework_spark.errors import InvalidOption
from txnframework_spark.options.given import GivenOptions, topic_of
from txnframework_spark.options.stores import STORE_OPTIONS, StoreOptions

_KNOWN: Final = (
    *STORE_OPTIONS,
    "subscribe",
    "groupId",
    "startingOffsets",
    "maxOffsetsPerTrigger",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "isolationLevel",
    "includeHeaders",
    "includeTransaction",
    "takeOverTimeoutMs",
)
STARTS: Final = ("earliest", "latest")


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
    include_transaction: bool = False
    take_over_timeout_ms: int = 60_000

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Return the options in ``given``; InvalidOption or UnknownOption in one sentence."""
        options = GivenOptions(given, _KNOWN, "a txnframework source")
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
            include_transaction=options.flag("includeTransaction", False),
            take_over_timeout_ms=options.number("takeOverTimeoutMs") or 60_000,
        )


def _topics(text: str) -> tuple[TopicName, ...]:
    topics = tuple(topic_of("subscribe", name) for name in text.split(",") if name.strip())
    if len(set(topics)) != len(topics):
        raise InvalidOption("subscribe", "it names a topic twice")
    return topics
