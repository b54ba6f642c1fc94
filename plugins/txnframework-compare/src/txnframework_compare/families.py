"""The transaction families that are compared, with their configurations, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from txnframework.config import DomainSection
from txnframework.errors import UnknownPlugin
from txnframework.plugin import PluginRegistry

BATCHING: Final = {"batching": {"enabled": True}}


@dataclass(frozen=True, slots=True)
class Family:
    """
    A family of transactions to compare.

    ``domain``: the domain of its topics, ``persistent`` or ``topic``. ``plugins``: coordinator, buffer and pending-ack
    store of that domain. ``sections``: further sections of its configuration.
    """

    name: str
    about: str
    domain: str
    plugins: DomainSection
    sections: Mapping[str, object] = field(default_factory=dict)

    @property
    def section(self) -> str:
        """The domain's name in the configuration and in transactions."""
        return "segment" if self.domain == "topic" else self.domain

    def config(self) -> dict[str, object]:
        """Return the configuration sections that select this family."""
        plugins = {
            "coordinator": self.plugins.coordinator,
            "buffer": self.plugins.buffer,
            "pending_ack": self.plugins.pending_ack,
        }
        return {"domains": {self.section: plugins}, **self.sections}

    def missing(self, registry: PluginRegistry) -> str | None:
        """Return which plugin is not installed and how to install it; None if all are installed."""
        for find, name in (
            (registry.coordinator, self.plugins.coordinator),
            (registry.buffer, self.plugins.buffer),
            (registry.pending_ack_store, self.plugins.pending_ack),
        ):
            try:
                find(name)
            except UnknownPlugin as error:
                brought_by = error.brought_by or f"txnframework-{name}"
                return f"the {error.role} {name!r} is not installed: pip install {brought_by}"
        return None


_LOGS = DomainSection(coordinator="log", buffer="marker", pending_ack="log")
_SIDECAR = DomainSection(coordinator="log", buffer="sidecar", pending_ack="log")
_RECORDS = DomainSection(coordinator="metadata", buffer="metadata", pending_ack="metadata")

FAMILIES: Final = {
    family.name: family
    for family in (
        Family("log", "transaction log and markers, as in PIP-31", "persistent", _LOGS),
        Family(
            "log-batched",
            "the same with batches in its logs, as in PIP-160",
            "persistent",
            _LOGS,
            {"coordinators": {"log": BATCHING}, "pending_acks": {"log": BATCHING}},
        ),
        Family("sidecar", "messages beside the topic until the commit, as in PIP-31", "persistent", _SIDECAR),
        Family("metadata", "decided by one record, as in PIP-473", "topic", _RECORDS),
    )
}
"""Every family, in the order of display."""
