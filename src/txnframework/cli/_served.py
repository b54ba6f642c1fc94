"""By which plugins topics are served, as the commands say it."""

from __future__ import annotations

from txnframework.broker import NoPlugins, plugins_of
from txnframework.config import DomainSection
from txnframework.plugin import PluginRegistry


def served(by: DomainSection, registry: PluginRegistry) -> str:
    """Say by which plugins a domain is served, or which ones it lacks."""
    plugins = plugins_of(by, registry)
    if isinstance(plugins, NoPlugins):
        return f"without transactions: {plugins.reason}"
    return f"coordinator {by.coordinator}, buffer {by.buffer}, pending acks {by.pending_ack}"
