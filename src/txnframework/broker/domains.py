"""The plugins of each topic domain; if none of them is installed, its topics work without transactions."""

from __future__ import annotations

from dataclasses import dataclass

from txnframework.config import DomainSection
from txnframework.errors import UnknownPlugin
from txnframework.interfaces import IPendingAckStore, ITransactionBuffer, ITransactionCoordinator
from txnframework.plugin import CoordinatorContext, PluginRegistry, Provider, SegmentContext, SubscriptionContext


@dataclass(frozen=True, slots=True)
class DomainPlugins:
    """The plugins that serve a domain, all of one family."""

    coordinator: Provider[CoordinatorContext, ITransactionCoordinator]
    buffer: Provider[SegmentContext, ITransactionBuffer]
    pending_acks: Provider[SubscriptionContext, IPendingAckStore]


@dataclass(frozen=True, slots=True)
class NoPlugins:
    """A domain without transactions; ``reason`` names the missing plugins, and the distributions that provide them."""

    reason: str


def plugins_of(section: DomainSection, registry: PluginRegistry) -> DomainPlugins | NoPlugins:
    """
    Return the plugins that are configured for a domain: all three, or NoPlugins if none is installed.

    :raises UnknownPlugin: only some of the three are installed; an incomplete family could return messages whose
        outcome it cannot decide.
    """
    missing: list[UnknownPlugin] = []
    for find, name in (
        (registry.coordinator, section.coordinator),
        (registry.buffer, section.buffer),
        (registry.pending_ack_store, section.pending_ack),
    ):
        try:
            find(name)
        except UnknownPlugin as error:
            missing.append(error)
    if len(missing) == 3:
        return NoPlugins(_reason(missing))
    if missing:
        raise missing[0]
    return DomainPlugins(
        registry.coordinator(section.coordinator),
        registry.buffer(section.buffer),
        registry.pending_ack_store(section.pending_ack),
    )


def _reason(missing: list[UnknownPlugin]) -> str:
    """Return a clause that names all missing plugins and, where known, the distributions to install."""
    *first, last = [f"{error.role} {error.name!r}" for error in missing]
    brought_by = sorted({error.brought_by for error in missing if error.brought_by})
    install = f"; they come with: pip install {' '.join(brought_by)}" if brought_by else ""
    return f"{', '.join(first)} and {last} are not installed{install}"
