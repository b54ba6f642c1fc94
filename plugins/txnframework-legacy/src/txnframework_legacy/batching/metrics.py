"""Metrics of batched writes, under Pulsar's names, in seconds and bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from txnframework_legacy.batching.switches import LogKind
from txnframework_legacy.log import Flushed, FlushReason

if TYPE_CHECKING:
    from txnframework.metrics import Metrics

PREFIX: Final = {
    LogKind.TRANSACTIONS: "pulsar_txn_tc_bufferedwriter",
    LogKind.PENDING_ACKS: "pulsar_txn_pending_ack_store_bufferedwriter",
}
REASON: Final = {
    FlushReason.RECORDS: "max_records",
    FlushReason.BYTES: "max_size",
    FlushReason.DELAY: "max_delay",
    FlushReason.LARGE: "large_data",
    FlushReason.SWITCHED_OFF: "switched_off",
}
RECORDS_BOUNDS: Final = (1, 2, 5, 10, 50, 100, 200, 500, 1_000)
BYTES_BOUNDS: Final = (128, 512, 1_024, 2_048, 4_096, 16_384, 102_400, 1_048_576, 4_194_304)
DELAY_BOUNDS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 1.0)


def measured(metrics: Metrics | None, kind: LogKind, coordinator: str = "") -> Callable[[Flushed], None]:
    """
    Return the callback to which a writer reports each entry; ``coordinator`` is empty for a subscription's log.

    A metric family is created with its first observation: without batching, none is exported.
    """
    if metrics is None:
        return lambda _: None
    prefix = PREFIX[kind]
    # There are too many subscriptions for a label each.
    labelled = {} if kind is LogKind.PENDING_ACKS else {"coordinator_id": coordinator}
    labels, values = tuple(labelled), tuple(labelled.values())

    def observe(name: str, description: str, bounds: tuple[float, ...], value: float) -> None:
        family = metrics.histogram(f"{prefix}_{name}", description, labels, bounds)
        (family.labels(*values) if values else family).observe(value)

    def tell(flushed: Flushed) -> None:
        observe("batch_record_count", "Records of an entry that was gathered.", RECORDS_BOUNDS, flushed.records)
        observe("batch_size_bytes", "Size of an entry that was gathered.", BYTES_BOUNDS, flushed.bytes)
        observe(
            "batch_oldest_record_delay_time_seconds",
            "How long the oldest record of an entry waited until the entry was sent.",
            DELAY_BOUNDS_S,
            flushed.waited_ms / 1_000,
        )
        description = "Entries that were gathered, by what let them be sent."
        counter = metrics.counter(f"{prefix}_flush_trigger_total", description, (*labels, "reason"))
        counter.labels(*values, REASON[flushed.reason]).inc()

    return tell
