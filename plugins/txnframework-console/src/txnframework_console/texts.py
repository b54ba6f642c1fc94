"""Text forms of values: numbers, times, durations, and names that may contain anything."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Categories of characters that a reader does not see, or that change how the text around them is read."""


def visible(text: object) -> str:
    """Return a text with every character visible: control characters and the like are written as escapes."""
    return "".join(f"\\u{ord(one):04x}" if unicodedata.category(one) in _HIDDEN else one for one in str(text))


def number(count: int) -> str:
    """Return a whole number with a thin space between groups of three digits."""
    return f"{count:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def duration(ms: int) -> str:
    """Return a duration in one or two units, such as ``3 min 20 s``."""
    if ms < 1_000:
        return f"{max(0, ms)} ms"
    seconds = ms // 1_000
    for name, size, smaller, part in (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= size:
            rest = seconds % size // part
            return f"{seconds // size} {name}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds} s"


def moment(at_ms: int) -> str:
    """Return a time in ISO 8601 and UTC, to the second."""
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def clock(at_ms: int) -> str:
    """Return the time of day in UTC."""
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%H:%M:%S UTC")


def short_topic(topic: object) -> str:
    """Return a topic's name without what is the default: ``topic://public/default/``."""
    return str(topic).removeprefix("topic://public/default/")
