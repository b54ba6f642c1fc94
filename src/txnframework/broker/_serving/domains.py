"""Which plugins serve a topic domain; where none of them is installed, its topics work without transactions."""

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
    """A domain that is served without transactions; ``reason`` says which plugins it lacks, and what brings them."""

    reason: str


def plugins_of(section: DomainSection, registry: PluginRegistry) -> DomainPlugins | NoPlugins:
    """
    Return the plugins that a domain is configured with, all three or none.

    :raises UnknownPlugin: some are installed and this one is not; a part of a family would show what it cannot judge.
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
    """Return one clause that names all that is missing, and the distributions to install where they are known."""
    *first, last = [f"{error.role} {error.name!r}" for error in missing]
    brought_by = sorted({error.brought_by for error in missing if error.brought_by})
    install = f"; they come with: pip install {' '.join(brought_by)}" if brought_by else ""
    return f"{', '.join(first)} and {last} are not installed{install}"
