"""What retention throws away, in words; pure."""

from __future__ import annotations

from collections.abc import Iterator

from txnframework.cli.output import duration_of
from txnframework.config import Config, RetentionSection


def trimming(config: Config) -> Iterator[str]:
    """Yield what goes of all topics, and of each namespace with a rule of its own; nothing, if everything stays."""
    rule = _trimmed_by(config.retention)
    if rule:
        yield rule
    for namespace in sorted(config.namespaces):
        own = _trimmed_by(config.retention_of(namespace))
        if own != rule:
            yield f"in {namespace}: {own or 'nothing is thrown away'}"


def _trimmed_by(rule: RetentionSection) -> str:
    """Return what a rule throws away; empty: nothing."""
    limits = []
    if rule.time_ms == 0 or rule.bytes == 0:
        limits.append("at once")
    else:
        if rule.time_ms > 0:
            limits.append(f"after {duration_of(rule.time_ms)}")
        if rule.bytes > 0:
            limits.append(f"beyond {rule.bytes} bytes of a segment")
    said = [f"acknowledged messages are thrown away {' or '.join(limits)}"] if limits else []
    if rule.backlog_time_ms >= 0:
        when = f"after {duration_of(rule.backlog_time_ms)}" if rule.backlog_time_ms else "at once"
        said.append(f"messages that a subscription has not acknowledged are lost to it {when}")
    return "; ".join(said)
