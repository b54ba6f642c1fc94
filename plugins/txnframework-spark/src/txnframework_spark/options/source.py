"""Options of ``readStream`` and ``spark.read``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from txnframework.model.names import TopicName
from txnframework.model.positions import Position
from txnframework.model.reads import Isolation
from txnframework_spark.errors import InvalidOption
from txnframework_spark.options.parser import (
    STORE_OPTIONS,
    OptionParser,
    StoreOptions,
    option,
    options_of,
    read_declared,
)
from txnframework_spark.options.selection import (
    CHOICE_OPTIONS,
    END_OPTIONS,
    START_OPTIONS,
    Bounds,
    Edge,
    TopicSelection,
    parse_bounds,
    parse_selection,
)

_STREAM: Final = "it is for readStream only; remove it"


def _isolation(options: OptionParser, name: str) -> Isolation | None:
    level = options.one_of(name, tuple(level.value for level in Isolation))
    return None if level is None else Isolation(level)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """
    Options of a load; ``for_stream`` and ``for_batch`` refuse options of the other kind, and add the default start.

    ``starting``: the start of a query without ``group_id``, or of a new subscription. ``given``: the names of the given
    options, as they are documented.
    """

    stores: StoreOptions
    selection: TopicSelection
    starting: Bounds | None = None
    ending: Bounds | None = None
    given: frozenset[str] = frozenset()
    max_offsets_per_trigger: int | None = option(
        "maxOffsetsPerTrigger",
        OptionParser.number,
        "stream: maximum messages of one micro-batch over all topics and segments",
        "all",
        only=_STREAM,
    )
    max_bytes_per_trigger: int | None = option(
        "maxBytesPerTrigger",
        OptionParser.number,
        "stream: about the maximum bytes of the entries of one micro-batch; a batch has at least one entry",
        "all",
        only=_STREAM,
    )
    align_segments: bool = option(
        "alignSegments",
        OptionParser.flag,
        "stream: a micro-batch reads all segments up to the same time; `false`: it reads a number of messages from"
        " each segment, in proportion to the unread messages there",
        "`true`",
        value=True,
        only=_STREAM,
    )
    min_offsets_per_trigger: int | None = option(
        "minOffsetsPerTrigger", OptionParser.number, "stream: minimum messages of one micro-batch", "1", only=_STREAM
    )
    max_trigger_delay_ms: int = option(
        "maxTriggerDelay",
        OptionParser.duration_ms,
        "stream: ignore the minimum if the last micro-batch began so long ago (`500ms`, `30s`, `15m`, `1h`)",
        "`15m`",
        value=15 * 60_000,
        only=_STREAM,
    )
    min_partitions: int | None = option(
        "minPartitions",
        OptionParser.number,
        "approximate minimum number of tasks; ranges are divided in proportion to their messages",
        "one for each segment; in a stream, segments with few new messages share a task",
    )
    max_records_per_partition: int | None = option(
        "maxRecordsPerPartition", OptionParser.number, "maximum messages of a task", "all"
    )
    group_id: str | None = option(
        "groupId",
        lambda options, name: options.known_name(name, "subscription name"),
        "stream: the subscription; it is acknowledged in the sink's transaction, and a new query begins at its cursor",
        "none",
        only="a batch does not acknowledge messages; remove it, or use readStream with trigger(availableNow=True),"
        " which begins at the subscription's cursor and stops at the end",
    )
    allow_unacknowledged: bool = option(
        "allowUnacknowledged",
        OptionParser.flag,
        "stream: continue although no sink acknowledges what is read with `groupId` ([other"
        " sinks](../how-to/spark-other-sinks.md))",
        "`false`",
        value=False,
        only=_STREAM,
    )
    take_over_timeout_ms: int = option(
        "takeOverTimeoutMs",
        OptionParser.number,
        "stream: how long to wait for ordinary consumers of the subscription to close",
        "60000",
        value=60_000,
        only=_STREAM,
    )
    isolation: Isolation = option(  # noqa: RUF009
        "isolationLevel",
        _isolation,
        "`read_uncommitted` cannot be combined with `groupId`",
        "`read_committed`",
        value=Isolation.READ_COMMITTED,
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        OptionParser.flag,
        "`false`: skip messages that were trimmed, and topics that were deleted, before they were read",
        "`true`",
        value=True,
    )
    pattern_refresh_ms: int = option(
        "patternRefreshMs",
        lambda options, name: options.number(name, least=0),
        "stream: with a pattern, the minimum time between two listings of topics; 0: list for each micro-batch",
        "10000",
        value=10_000,
        only=_STREAM,
    )
    include_headers: bool = option(
        "includeHeaders", OptionParser.flag, "add the column `headers`", "`false`", value=False
    )
    include_transaction: bool = option(
        "includeTransaction",
        OptionParser.flag,
        "add the columns `__txn`, `__producer` and `__sequence`",
        "`false`",
        value=False,
    )

    @property
    def topics(self) -> tuple[TopicName, ...]:
        """The named topics; empty with a pattern."""
        return self.selection.topics

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Return the options in ``given``, or raise InvalidOption or UnknownOption."""
        declared = tuple(one.name for _, one in options_of(cls))
        known = (*STORE_OPTIONS, *CHOICE_OPTIONS, *START_OPTIONS, *END_OPTIONS, *declared)
        options = OptionParser(given, known, "a txnframework source")
        selection = parse_selection(options)
        found = cls(
            stores=options.stores(),
            selection=selection,
            starting=parse_bounds(options, "starting", selection),
            ending=parse_bounds(options, "ending", selection),
            given=frozenset(name for name in known if options.text(name) is not None),
            **read_declared(cls, options),
        )
        found._check()
        return found

    def for_stream(self) -> SourceOptions:
        """Return the options of a stream, which begins at the end by default."""
        for name in END_OPTIONS:
            if name in self.given:
                raise InvalidOption(name, "a stream has no end; remove it, or read a batch with spark.read")
        starting = self.starting or Bounds(Edge.LATEST)
        for topic, places in starting.named.items():
            for number, place in places.items():
                if isinstance(place, Position) and place.batch_index > 0:
                    raise InvalidOption(
                        "startingOffsets",
                        f"a stream begins with a whole entry; remove the index of segment {number} of {topic}, so that"
                        " the messages before it in its entry are read as well",
                    )
        return replace(self, starting=starting)

    def for_batch(self) -> SourceOptions:
        """Return the options of a batch, which reads from the beginning to the end by default."""
        for _, one in options_of(type(self)):
            if one.only and one.name in self.given:
                raise InvalidOption(one.name, one.only)
        starting = self.starting or Bounds(Edge.EARLIEST)
        if starting.edge is Edge.LATEST:
            raise InvalidOption("startingOffsets", "a batch that begins at latest is empty; use earliest or JSON")
        return replace(self, starting=starting, ending=self.ending or Bounds(Edge.LATEST))

    def _check(self) -> None:
        if self.group_id is not None and self.isolation is Isolation.READ_UNCOMMITTED:
            raise InvalidOption(
                "isolationLevel",
                "read_uncommitted cannot be combined with groupId: undecided messages cannot be acknowledged",
            )
        if self.group_id is not None and self.starting is not None and self.starting.edge is None:
            name = "startingOffsets" if self.starting.at_ms is None else "startingTimestamp"
            raise InvalidOption(
                name,
                "with groupId a query begins at the subscription's cursor; seek the subscription there instead, or"
                " leave groupId out",
            )
        ending = self.ending
        if ending is not None and (
            ending.edge is Edge.EARLIEST
            or any(place is Edge.EARLIEST for places in ending.named.values() for place in places.values())
        ):
            raise InvalidOption("endingOffsets", "reading cannot end at earliest; use latest or a position")
        least, most = self.min_offsets_per_trigger, self.max_offsets_per_trigger
        if least is not None and most is not None and least > most:
            raise InvalidOption("minOffsetsPerTrigger", f"{least} is greater than maxOffsetsPerTrigger ({most})")
        if "maxTriggerDelay" in self.given and least is None:
            raise InvalidOption(
                "maxTriggerDelay", "it limits how long minOffsetsPerTrigger waits, and requires that option"
            )
        if self.allow_unacknowledged and self.group_id is None:
            raise InvalidOption("allowUnacknowledged", "it requires the option groupId")
        if "patternRefreshMs" in self.given and self.selection.pattern is None:
            raise InvalidOption("patternRefreshMs", "it requires the option subscribePattern")
