"""Signals that stop a handler loop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from txnframework.errors import InvalidInput


def signals_of(given: object) -> tuple[signal.Signals, ...]:
    """Return the signals that a caller passed, or raise InvalidInput."""
    try:
        return tuple(signal.Signals(one) for one in given)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise InvalidInput("stop_on_signals are signals, such as (signal.SIGTERM, signal.SIGINT)") from None


@contextmanager
def stopping_at(signals: Iterable[signal.Signals], stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` at each of the signals; in the end, the earlier handlers are restored."""
    loop = asyncio.get_running_loop()
    replaced: list[tuple[signal.Signals, Any]] = []
    try:
        for one in signals:
            earlier = signal.getsignal(one)
            try:
                loop.add_signal_handler(one, stop)
            except (NotImplementedError, RuntimeError, ValueError) as error:
                raise InvalidInput(
                    f"{one.name} cannot be handled here ({error}); signals are handled in the main thread of a process"
                ) from error
            replaced.append((one, earlier))
        yield
    finally:
        for one, earlier in replaced:
            loop.remove_signal_handler(one)
            if earlier is not None:
                signal.signal(one, earlier)
