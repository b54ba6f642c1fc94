"""The progress of a long command."""

from __future__ import annotations

import io

from rich.console import Console

from txnframework.cli._restore import progress
from txnframework.cli.stores import NOTICE_DELAY_MS


def shown(*, terminal: bool, at_ms: int) -> str:
    """Return the text of a message this long after the start."""
    written, now_ms = io.StringIO(), 5
    with progress(Console(file=written, force_terminal=terminal), lambda: now_ms) as tell:
        tell("begun")
        now_ms += at_ms
        tell("looking at [orders]")
    return written.getvalue()


def test_progress_is_shown_to_people_who_wait() -> None:
    """Progress is shown on a terminal after two seconds, and never in a file."""
    assert "looking at [orders]" in shown(terminal=True, at_ms=NOTICE_DELAY_MS)
    assert shown(terminal=True, at_ms=NOTICE_DELAY_MS - 1) == ""
    assert shown(terminal=False, at_ms=NOTICE_DELAY_MS) == ""
