"""What the commands are given to work with."""

from __future__ import annotations

from dataclasses import dataclass, field

from txnframework.errors import PluginError
from txnframework.plugin import PluginRegistry


@dataclass(slots=True)
class Loaded:
    """The plugins of this run, and the errors of those that cannot be used; click's context object."""

    registry: PluginRegistry
    errors: list[PluginError] = field(default_factory=list)
