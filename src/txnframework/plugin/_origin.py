"""The origin of a plugin, which every error about a plugin names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from txnframework.errors import PluginError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@dataclass(frozen=True, slots=True)
class Origin:
    """The distribution and version of a plugin; None for a plugin that a program passed in itself."""

    distribution: str | None
    version: str | None
    name: str

    def __str__(self) -> str:
        """Return the beginning of an error's sentence."""
        if self.distribution is None:
            return f"plugin {self.name!r} (passed in by the program)"
        return f"{self.distribution} {self.version}"

    def error(self, reason: str) -> PluginError:
        """Return the error that gives ``reason`` for this plugin."""
        return PluginError(f"{self} {reason}", self.distribution, self.version)


def origin_of_entry_point(entry_point: EntryPoint) -> Origin:
    """Return the origin of an entry point."""
    if entry_point.dist is None:  # made by hand, not found in an installed distribution
        return Origin(None, None, entry_point.name)
    return Origin(entry_point.dist.name, entry_point.dist.version, entry_point.name)


def origin_of_object(plugin: object) -> Origin:
    """Return the origin of a plugin that was passed in, of which only the name is known."""
    return Origin(None, None, str(getattr(plugin, "__name__", type(plugin).__name__)))
