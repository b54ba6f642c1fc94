"""What of the libraries' logs a person at a terminal reads."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

OWN = "txnframework"
"""What the names of our loggers and modules begin with, those of plugins of this project too."""


@contextmanager
def own_words_only() -> Iterator[None]:
    """
    Keep what drivers log off standard error, where nobody has set logging up: what became of it our errors say.

    A driver that loses its server may also raise in a callback of its own, of which asyncio writes a traceback; that of
    an exception of ours, or of Python's own, is a defect and stays.
    """
    last = logging.lastResort
    if last is None:
        yield
        return
    last.addFilter(_is_ours)
    try:
        yield
    finally:
        last.removeFilter(_is_ours)


def _is_ours(record: logging.LogRecord) -> bool:
    if record.name == "asyncio":
        raised = record.exc_info[0] if record.exc_info else None
        return raised is None or _top(raised.__module__) in sys.stdlib_module_names or raised.__module__.startswith(OWN)
    return record.name == "py.warnings" or record.name.startswith(OWN)


def _top(module: str) -> str:
    return module.partition(".")[0]
