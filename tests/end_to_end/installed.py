"""The installed plugins that a test sees, so that tests of a missing plugin run in every environment."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

LOG_FAMILY = ("legacy", "sidecar")


def without_log_family(group: str) -> list[EntryPoint]:
    """Return the installed plugins without those of the log-driven family."""
    return [one for one in entry_points(group=group) if one.name not in LOG_FAMILY]
