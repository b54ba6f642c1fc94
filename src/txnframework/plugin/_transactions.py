"""The section of the configuration that plugins are given with their contexts."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class TransactionsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long transactions live, and how much one sweep over them does."""

    timeout_ms: Annotated[
        int, Meta(ge=1, description="A transaction that names no timeout of its own is aborted after this.")
    ] = 60_000
    timeout_ms_max: Annotated[int, Meta(ge=1, description="The longest timeout that a client may ask for.")] = (
        86_400_000
    )
    end_timeout_ms: Annotated[
        int, Meta(ge=1, description="How long ending waits for participants before it raises.")
    ] = 30_000
    retention_ms: Annotated[
        int, Meta(ge=0, description="How long the outcome of an ended transaction can be asked for.")
    ] = 3_600_000
    abort_retention_ms: Annotated[
        int,
        Meta(ge=0, description="How long an abort is remembered after the last entry it hides was trimmed."),
    ] = 3_600_000
    max_clock_skew_ms: Annotated[
        int, Meta(ge=0, description="By how much the clocks of two hosts may differ; added to every deadline.")
    ] = 1_000
    coordinators: Annotated[
        int,
        Meta(
            ge=1,
            le=0x8000,
            description="How many coordinators each family has, spread over the hosts; the same on every host.",
        ),
    ] = 16
    timers_max: Annotated[
        int,
        Meta(
            ge=1,
            description="For how many open transactions a process keeps timers; what is beyond waits for a sweep.",
        ),
    ] = 100_000
    settling_delay_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="How long after its end a process leaves a transaction alone before it makes it take effect:"
            " others see it at once, and that what is done then does not hold them up is worth more than that it is"
            " done sooner.",
        ),
    ] = 2
    settling_max: Annotated[
        int,
        Meta(ge=1, description="How many ended transactions of a process take effect at the same time."),
    ] = 8
    settling_waiting_max: Annotated[
        int,
        Meta(ge=0, description="How many more of them may wait for that; what is beyond waits for a sweep."),
    ] = 10_000
    sweep: Annotated[
        bool,
        Meta(
            description="Whether this process takes its share of the coordinators, and its turn at aborting what is"
            " overdue and forgetting what is done."
        ),
    ] = True
    sweep_transactions_max: Annotated[
        int, Meta(ge=1, description="How many transactions one sweep aborts or collects before others get a turn.")
    ] = 100
    sweep_interval_ms: Annotated[
        int, Meta(ge=1, description="The longest time between two sweeps when no deadline wakes one earlier.")
    ] = 30_000

    def __post_init__(self) -> None:
        """Refuse a default timeout that no client may request."""
        if self.timeout_ms > self.timeout_ms_max:
            raise ValueError(f"timeout_ms ({self.timeout_ms}) is longer than timeout_ms_max ({self.timeout_ms_max})")
