"""Log writers of a host: they have configured limits and metrics, and switches turn batching on and off."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from txnframework.environment import Environment
from txnframework.interfaces import IManagedLedger
from txnframework_legacy.log import BatchedLogWriter, Batching, FlushMetrics, FlushReason
from txnframework_legacy.log.switches import LogKind, Scope, SwitchListener, SwitchWatcher

if TYPE_CHECKING:
    from txnframework.instruments import Instruments


PREFIX: Final = {
    LogKind.TRANSACTIONS: "txnframework_transaction_log",
    LogKind.PENDING_ACKS: "txnframework_pending_ack_log",
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


def flush_observer(metrics: Instruments | None, kind: LogKind, coordinator: str = "") -> Callable[[FlushMetrics], None]:
    """
    Return the callback that receives a report of each written entry; ``coordinator`` is empty for a subscription's log.

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

    def notify(flushed: FlushMetrics) -> None:
        observe("batch_records", "Records of a batched entry.", RECORDS_BOUNDS, flushed.records)
        observe("batch_bytes", "Size of a batched entry.", BYTES_BOUNDS, flushed.bytes)
        observe(
            "batch_delay_seconds",
            "Time that the oldest record of an entry waited before the entry was written.",
            DELAY_BOUNDS_S,
            flushed.waited_ms / 1_000,
        )
        description = "Batched entries, by the limit that caused the write."
        counter = metrics.counter(f"{prefix}_batches_total", description, (*labels, "reason"))
        counter.labels(*values, REASON[flushed.reason]).inc()

    return notify


class SwitchedLogWriter(BatchedLogWriter):
    """A writer that batches if the switch of its log enables batching."""

    def __init__(
        self,
        ledger: IManagedLedger,
        environment: Environment,
        batching: Batching,
        flushed: Callable[[FlushMetrics], None],
        switches: SwitchWatcher,
        log: Scope,
    ) -> None:
        super().__init__(ledger, environment, batching, flushed)
        self._switches = switches
        self._listener = SwitchListener(log, batching.enabled, lambda enabled: self.switch(batching=enabled))

    async def subscribe(self) -> None:
        """Follow the switches from now on."""
        await self._switches.subscribe(self._listener)

    async def close(self) -> None:
        """Refuse further records. Idempotent."""
        await self._switches.unsubscribe(self._listener)
        await super().close()


class LogWriterFactory:
    """Creates the writers of one kind of log."""

    def __init__(
        self,
        switches: SwitchWatcher,
        environment: Environment,
        batching: Batching,
        metrics: Instruments | None = None,
    ) -> None:
        self._switches = switches
        self._environment = environment
        self._batching = batching
        self._metrics = metrics

    async def open(self, ledger: IManagedLedger, log: Scope) -> SwitchedLogWriter:
        """Return a writer for a log, switched to the current decision. On failure the ledger is closed."""
        flushed = flush_observer(self._metrics, self._switches.kind, log.outer)
        writer = SwitchedLogWriter(ledger, self._environment, self._batching, flushed, self._switches, log)
        try:
            await writer.subscribe()
        except BaseException:
            await ledger.close()
            raise
        return writer
