"""Decides when gathered records are written: the part of the writer without I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Generic, TypeVar

import msgspec
from msgspec import Meta

from txnframework_legacy.log.format import RECORD_OVERHEAD

T = TypeVar("T")


class Batching(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options for batches of log records."""

    enabled: Annotated[
        bool, Meta(description="Whether records share entries; one by one costs more appends and no delay.")
    ] = False
    records_max: Annotated[int, Meta(ge=1, description="How many records one entry holds at most.")] = 512
    bytes_max: Annotated[
        int, Meta(ge=1, description="How many bytes of records one entry holds at most; a larger one stands alone.")
    ] = 4 * 1024 * 1024
    delay_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="How long a record waits for others at most; longer only while the one before is written.",
        ),
    ] = 1
    waiting_records_max: Annotated[
        int, Meta(ge=1, description="How many records wait to be written at most; whoever adds more waits.")
    ] = 10_000


class FlushReason(Enum):
    """Why gathered records were written."""

    RECORDS = "records"
    BYTES = "bytes"
    DELAY = "delay"
    LARGE = "large"
    SWITCHED_OFF = "switched_off"


@dataclass(frozen=True, slots=True)
class Batch(Generic[T]):
    """The records of one entry; ``since_ms`` is when the first of them was added."""

    items: tuple[T, ...]
    reason: FlushReason
    since_ms: int


class Gathering(Generic[T]):
    """The records that wait for more records; at most as many as fit into one entry."""

    def __init__(self, batching: Batching) -> None:
        self._batching = batching
        self._items: list[T] = []
        self._bytes = 0
        self._since_ms = 0

    @property
    def due_ms(self) -> int | None:
        """The latest time at which the gathered records are written; None if there are none."""
        return self._since_ms + self._batching.delay_ms if self._items else None

    def add(self, item: T, size: int, now_ms: int) -> list[Batch[T]]:
        """Add a record of ``size`` bytes; return the batches to write now, in this order."""
        size += RECORD_OVERHEAD
        bounds = self._batching
        full: list[Batch[T]] = []
        if size >= bounds.bytes_max:
            # Records that were added earlier are written first.
            full += self.flush(FlushReason.LARGE)
            return [*full, Batch((item,), FlushReason.LARGE, now_ms)]
        if self._bytes + size > bounds.bytes_max:
            full += self.flush(FlushReason.BYTES)
        if not self._items:
            self._since_ms = now_ms
        self._items.append(item)
        self._bytes += size
        if self._bytes >= bounds.bytes_max:
            full += self.flush(FlushReason.BYTES)
        elif len(self._items) >= bounds.records_max:
            full += self.flush(FlushReason.RECORDS)
        return full

    def flush(self, reason: FlushReason) -> list[Batch[T]]:
        """Return the gathered records as at most one batch, and start a new one."""
        if not self._items:
            return []
        batch = Batch(tuple(self._items), reason, self._since_ms)
        self._items, self._bytes = [], 0
        return [batch]

    def drop(self) -> tuple[T, ...]:
        """Discard the gathered records and return them."""
        items, self._items, self._bytes = tuple(self._items), [], 0
        return items
