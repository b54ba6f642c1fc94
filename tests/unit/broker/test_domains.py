"""Which plugins serve a domain: all three that are configured, or none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from txnframework.broker import DomainPlugins, NoPlugins, plugins_of
from txnframework.config import DomainSection
from txnframework.errors import UnknownPlugin
from txnframework.plugin import PluginRegistry

LOG = DomainSection(coordinator="log", buffer="marker", pending_ack="log")


@dataclass(frozen=True)
class Installed:
    """A registry of plugins that are never opened."""

    coordinators: tuple[str, ...] = ("log",)
    buffers: tuple[str, ...] = ("marker",)
    pending_ack_stores: tuple[str, ...] = ("log",)

    def coordinator(self, name: str) -> Any:
        return self._find("coordinator", name, self.coordinators)

    def buffer(self, name: str) -> Any:
        return self._find("transaction buffer", name, self.buffers)

    def pending_ack_store(self, name: str) -> Any:
        return self._find("pending-ack store", name, self.pending_ack_stores)

    def _find(self, role: str, name: str, installed: tuple[str, ...]) -> Any:
        if name not in installed:
            raise UnknownPlugin(role, name, installed)
        return f"{role} {name}"


def served(section: DomainSection, **installed: tuple[str, ...]) -> DomainPlugins | NoPlugins:
    return plugins_of(section, cast("PluginRegistry", Installed(**installed)))


def test_all_are_installed() -> None:
    """With all three plugins, the domain has transactions."""
    expected: Any = ("coordinator log", "transaction buffer marker", "pending-ack store log")
    assert served(LOG) == DomainPlugins(*expected)


@pytest.mark.parametrize("lacking", ["coordinators", "buffers", "pending_ack_stores"])
def test_they_come_whole(lacking: str) -> None:
    """If some of the three plugins are missing, the domain is not served, with or without transactions."""
    with pytest.raises(UnknownPlugin):
        served(LOG, **{lacking: ()})
    others = {name: () for name in ("coordinators", "buffers", "pending_ack_stores") if name != lacking}
    with pytest.raises(UnknownPlugin):
        served(LOG, **others)


def test_none_is_installed() -> None:
    """Without all three, the domain has no transactions; the reason names them and the package to install."""
    plugins = PluginRegistry({}, {})
    lacking = "coordinator 'log', transaction buffer 'marker' and pending-ack store 'log' are not installed"
    found = plugins_of(LOG, plugins)
    assert isinstance(found, NoPlugins)
    assert found.reason.startswith(lacking)
    metadata = plugins_of(DomainSection(coordinator="metadata", buffer="metadata", pending_ack="metadata"), plugins)
    assert isinstance(metadata, NoPlugins)
    assert metadata.reason.endswith("; they come with: pip install txnframework-metadata")
