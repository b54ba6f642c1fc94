"""The distribution is there."""

from __future__ import annotations

from txnframework_zookeeper import plugin


def test_the_plugin_has_its_hook() -> None:
    """A host that installs the distribution asks its hook for metadata stores."""
    assert isinstance(plugin.txnframework_metadata_stores(), list)
