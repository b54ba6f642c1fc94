"""The options of ``Consumer.run`` and ``Consumer.run_batches``."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from typing import TypedDict

from txnframework.client._arguments import MILLISECONDS_MAX, whole_number
from txnframework.client._handlers.plan import LoopOptions
from txnframework.errors import InvalidInput

RETRIES_MAX = 5
DRAIN_TIMEOUT_MS = 30_000
REDELIVERY_DELAY_MS_MAX = 60_000
MESSAGES_MAX = 100
"""The defaults of the options of ``run``."""


class RunOptions(TypedDict, total=False):
    """The options of ``Consumer.run`` and ``Consumer.run_batches``; all of them have defaults."""

    concurrency: int
    retries_max: int
    redelivery_delay_ms_max: int
    drain_timeout_ms: int
    stop_on_signals: Iterable[signal.Signals]


def loop_options(messages_max: int, options: RunOptions) -> LoopOptions:
    """Check the options that a caller passed, and return the bounds of the loop."""
    unknown = sorted(set(options) - set(RunOptions.__annotations__))
    if unknown:
        raise InvalidInput(f"run has no option {unknown[0]}; it has {', '.join(RunOptions.__annotations__)}")
    return LoopOptions(
        concurrency=whole_number(options.get("concurrency", 1), "concurrency", 1),
        messages_max=messages_max,
        retries_max=whole_number(options.get("retries_max", RETRIES_MAX), "retries_max", 0),
        delay_ms_max=whole_number(
            options.get("redelivery_delay_ms_max", REDELIVERY_DELAY_MS_MAX),
            "redelivery_delay_ms_max",
            0,
            MILLISECONDS_MAX,
        ),
        drain_timeout_ms=whole_number(
            options.get("drain_timeout_ms", DRAIN_TIMEOUT_MS), "drain_timeout_ms", 0, MILLISECONDS_MAX
        ),
    )
