"""Which coordinators a configuration uses, one of each family that is installed."""

from __future__ import annotations

from txnframework.config import Config
from txnframework.errors import UnknownPlugin
from txnframework.plugin import PluginRegistry


def coordinators_by_family(config: Config, registry: PluginRegistry) -> dict[str, str]:
    """
    Return the name of the coordinator of each family that serves a domain, or a namespace of one.

    A transaction's id tells its family and no more, so each family has one; those that are not installed have none.
    """
    named = [config.domains.segment.coordinator, config.domains.persistent.coordinator]
    for overrides in config.namespaces.values():
        named += [one.coordinator for one in (overrides.segment, overrides.persistent) if one.coordinator]
    found: dict[str, str] = {}
    for name in named:
        try:
            families = registry.coordinator(name).families
        except UnknownPlugin:
            continue
        for family in sorted(families):
            found.setdefault(family, name)
    return found
