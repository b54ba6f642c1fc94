"""Options of ``readStream`` and ``spark.read``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from txnframework.model.names import TopicName
from txnframework.model.positions import Position
from txnframework.model.reads import Isolation
from txnframework_spark.errors import InvalidOption
from txnframework_spark.options.parser import STORE_OPTIONS, OptionParser, StoreOptions
from txnframework_spark.options.selection import (
    CHOICE_OPTIONS,
    Bounds,
    Edge,
    TopicSelection,
    parse_bounds,
    parse_selection,
)

_STREAM_ONLY: Final = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "alignSegments",
    "allowUnacknowledged",
    "patternRefreshMs",
    "takeOverTimeoutMs",
)
_BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp")
_KNOWN: Final = (
    *STORE_OPTIONS,
    *CHOICE_OPTIONS,
    *_STREAM_ONLY,
    *_BATCH_ONLY,
    "groupId",
    "startingOffsets",
    "startingTimestamp",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "isolationLevel",
    "includeHeaders",
    "includeTransaction",
)
_MAX_TRIGGER_DELAY_MS: Final = 15 * 60_000
_LIST_EVERY_MS: Final = 10_000
_TAKE_OVER_TIMEOUT_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of a load.

    ``for_stream`` and ``for_batch`` refuse options of the other kind, and add the default start.

    ``group_id`` None: nothing is acknowledged, and only the checkpoint records progress. ``starting``: the start of a
    query without ``group_id``, or of a new subscription. ``max_offsets_per_trigger``: messages of one micro-batch over
    all segments, exceeded only to complete an entry. ``max_bytes_per_trigger``: about the bytes of its entries.
    ``align_segments``: a limited batch reads all segments up to the same time of the store's clock.
    ``allow_unacknowledged``: continue although no sink acknowledges the messages that are read with ``group_id``.
    ``one_sided``: the given options that only streams, or only batches, accept.
    """

    stores: StoreOptions
    selection: TopicSelection
    group_id: str | None = None
    starting: Bounds | None = None
    ending: Bounds | None = None
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = _MAX_TRIGGER_DELAY_MS
    align_segments: bool = True
    allow_unacknowledged: bool = False
    pattern_refresh_ms: int = _LIST_EVERY_MS
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    isolation: Isolation = Isolation.READ_COMMITTED
    include_headers: bool = False
    include_transaction: bool = False
    take_over_timeout_ms: int = _TAKE_OVER_TIMEOUT_MS
    one_sided: tuple[str, ...] = ()

    @property
    def topics(self) -> tuple[TopicName, ...]:
        """The named topics; empty with a pattern."""
        return self.selection.topics

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Return the options in ``given``, or raise InvalidOption or UnknownOption."""
        options = OptionParser(given, _KNOWN, "a txnframework source")
        selection = parse_selection(options)
        refresh_ms, delay_ms = options.number("patternRefreshMs", least=0), options.duration_ms("maxTriggerDelay")
        found = cls(
            stores=options.stores(),
            selection=selection,
            group_id=options.known_name("groupId", "subscription name"),
            starting=parse_bounds(options, "starting", selection),
            ending=parse_bounds(options, "ending", selection),
            max_offsets_per_trigger=options.number("maxOffsetsPerTrigger"),
            max_bytes_per_trigger=options.number("maxBytesPerTrigger"),
            min_offsets_per_trigger=options.number("minOffsetsPerTrigger"),
            max_trigger_delay_ms=delay_ms or _MAX_TRIGGER_DELAY_MS,
            align_segments=options.flag("alignSegments", True),
            allow_unacknowledged=options.flag("allowUnacknowledged", False),
            pattern_refresh_ms=_LIST_EVERY_MS if refresh_ms is None else refresh_ms,
            min_partitions=options.number("minPartitions"),
            max_records_per_partition=options.number("maxRecordsPerPartition"),
            fail_on_data_loss=options.flag("failOnDataLoss", True),
            isolation=Isolation(
                options.one_of("isolationLevel", tuple(level.value for level in Isolation), "read_committed")
            ),
            include_headers=options.flag("includeHeaders", False),
            include_transaction=options.flag("includeTransaction", False),
            take_over_timeout_ms=options.number("takeOverTimeoutMs") or _TAKE_OVER_TIMEOUT_MS,
            one_sided=tuple(name for name in (*_STREAM_ONLY, *_BATCH_ONLY) if options.text(name) is not None),
        )
        found._check(delay_ms is not None, refresh_ms is not None)
        return found

    def for_stream(self) -> SourceOptions:
        """Return the options of a stream, which begins at the end by default."""
        for name in self.one_sided:
            if name in _BATCH_ONLY:
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
        if self.group_id is not None:
            raise InvalidOption(
                "groupId",
                "a batch does not acknowledge messages; remove it, or use readStream with trigger(availableNow=True),"
                " which begins at the subscription's cursor and stops at the end",
            )
        for name in self.one_sided:
            if name in _STREAM_ONLY:
                raise InvalidOption(name, "it is for readStream only; remove it")
        starting = self.starting or Bounds(Edge.EARLIEST)
        if starting.edge is Edge.LATEST:
            raise InvalidOption("startingOffsets", "a batch that begins at latest is empty; use earliest or JSON")
        return replace(self, starting=starting, ending=self.ending or Bounds(Edge.LATEST))

    def _check(self, has_delay: bool, has_refresh: bool) -> None:
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
        if has_delay and least is None:
            raise InvalidOption(
                "maxTriggerDelay", "it limits how long minOffsetsPerTrigger waits, and requires that option"
            )
        if self.allow_unacknowledged and self.group_id is None:
            raise InvalidOption("allowUnacknowledged", "it requires the option groupId")
        if has_refresh and self.selection.pattern is None:
            raise InvalidOption("patternRefreshMs", "it requires the option subscribePattern")
