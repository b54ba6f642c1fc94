"""What is compared: a family of transactions with its configuration, as data."""

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
    One side of the comparison.

    ``domain``: that of its topics, ``persistent`` or ``topic``. ``plugins``: coordinator, buffer and pending-ack store
    of that domain. ``sections``: what else its configuration says.
    """

    name: str
    about: str
    domain: str
    plugins: DomainSection
    sections: Mapping[str, object] = field(default_factory=dict)

    @property
    def section(self) -> str:
        """The domain as the configuration and transactions name it."""
        return "segment" if self.domain == "topic" else self.domain

    def config(self) -> dict[str, object]:
        """Return the sections of the configuration that make it this family."""
        plugins = {
            "coordinator": self.plugins.coordinator,
            "buffer": self.plugins.buffer,
            "pending_ack": self.plugins.pending_ack,
        }
        return {"domains": {self.section: plugins}, **self.sections}

    def missing(self, registry: PluginRegistry) -> str | None:
        """Return what is not installed of it and what to install, or None."""
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
        Family("log", "transaction log and markers, as PIP-31 has them", "persistent", _LOGS),
        Family(
            "log-batched",
            "the same with batches in its logs, as PIP-160 has them",
            "persistent",
            _LOGS,
            {"coordinators": {"log": BATCHING}, "pending_acks": {"log": BATCHING}},
        ),
        Family(
            "sidecar", "messages beside the topic until the commit, as PIP-31 has it in full", "persistent", _SIDECAR
        ),
        Family("metadata", "decided by one record, as PIP-473 has it", "topic", _RECORDS),
    )
}
"""Every family, in the order in which it is shown."""
