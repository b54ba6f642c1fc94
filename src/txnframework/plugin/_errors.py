"""Errors about plugins: their origin, unknown names, and data that another plugin wrote."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

from txnframework.errors import ConfigurationError, PluginError, UnknownPlugin
from txnframework.model.names import PERSISTENT, topic_of
from txnframework.tables import nearest

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


def unknown_plugin(
    role: str, name: str, installed: Iterable[str], left_out: Iterable[PluginError] = ()
) -> UnknownPlugin:
    """
    Return the error for ``name``, with the nearest name and, if known, the distribution that provides it.

    ``left_out`` has the errors of installed plugins, one of which may provide the name.

    A distribution is named only from the list of this release, never derived from the given name. A misspelt name could
    lead to a malicious distribution.
    """
    names = set(installed)
    distributions = _distributions(role)
    meant = name.lower() if name.lower() in distributions else nearest(name, names | set(distributions))
    broken = {error.distribution: f"; left out: {error}" for error in left_out}
    reasons = "".join(broken.values())
    if meant is None:
        return UnknownPlugin(role, name, names, reasons or "; 'txnframework plugins' lists all that is installed")
    guess = "" if meant == name else f"; did you mean {meant!r}?"
    if meant in names or distributions[meant] in broken:
        return UnknownPlugin(role, name, names, guess + reasons)
    brought = f"{'; it' if not guess else ' It'} comes with: pip install {distributions[meant]}"
    return UnknownPlugin(role, name, names, guess + brought + reasons, distributions[meant])


def _distributions(role: str) -> dict[str, str]:
    text = files("txnframework.plugin").joinpath("known_distributions.toml").read_text(encoding="utf-8")
    table: dict[str, dict[str, str]] = tomllib.loads(text)
    return table.get(role, {})


def foreign_data(segment: str, what: str, serve: str) -> ConfigurationError:
    """
    Return the error of a topic whose data other plugins wrote: this process cannot judge that data.

    ``what`` names the data of the other plugins, and ``serve`` what has to serve the topic.
    """
    topic = topic_of(segment)
    domain = PERSISTENT if topic.domain == PERSISTENT else "segment"
    reason = (
        f"{segment} holds {what}; let {serve} serve it, in its domain or for the namespace"
        f" {topic.tenant}/{topic.namespace}, or send the messages that are to be kept to another topic"
    )
    return ConfigurationError(f"domains.{domain}", reason)
