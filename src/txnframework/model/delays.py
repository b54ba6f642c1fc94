"""The delay of a message: a reserved header, so that the format of entries is the same with and without delays."""

from __future__ import annotations

from collections.abc import Iterable

from txnframework.model.positions import TIME_MS_MAX

DELIVER_AT_HEADER = "txnframework-deliver-at-ms"
"""The header with the time before which a message is not delivered: decimal digits, in ms since 1970."""

Headers = tuple[tuple[str, bytes], ...]


def deliver_at_ms(headers: Iterable[tuple[str, bytes]]) -> int:
    """Return the time before which a message is not delivered; 0 without a delay, or if the header is not a time."""
    for name, content in headers:
        if name == DELIVER_AT_HEADER:
            is_time = content.isdigit() and len(content) <= len(str(TIME_MS_MAX))
            return int(content) if is_time else 0
    return 0


def delayed_until(headers: Headers, at_ms: int) -> Headers:
    """Return the headers of a message that is not delivered before ``at_ms``; an earlier delay is replaced."""
    return (*(one for one in headers if one[0] != DELIVER_AT_HEADER), (DELIVER_AT_HEADER, b"%d" % at_ms))
