"""A metadata store and a ledger store that do not belong together are refused; a healthy pair never is."""

from __future__ import annotations

import pytest

import txnframework
from txnframework.errors import ConfigurationError, StoreMismatch
from txnframework.plugin import PluginRegistry


def _config(metadata: str, ledger: str) -> dict[str, object]:
    return {"metadata": {"url": metadata}, "ledger": {"url": ledger}}


async def test_stores_of_different_identities(registry: PluginRegistry) -> None:
    """The error names both identities, so that the wrong store can be found."""
    ledger = "memory://belonging-ledger"
    async with txnframework.open(_config("memory://belonging-one", ledger), registry=registry):
        pass
    with pytest.raises(StoreMismatch) as refused:
        async with txnframework.open(_config("memory://belonging-two", ledger), registry=registry):
            pass
    for named in ("belonging-two", "belonging-ledger"):
        assert named in str(refused.value)
    async with txnframework.open(_config("memory://belonging-one", ledger), registry=registry):
        pass  # nothing was changed by that


async def test_a_configuration_that_does_not_fit(registry: PluginRegistry) -> None:
    """The error names the faulty key of the configuration, and never a password."""
    with pytest.raises(ConfigurationError, match=r"metadata\.url") as refused:
        async with txnframework.open({"metadata": {"url": "nosuch://me:secret@host/db"}}, registry=registry):
            pass
    assert "secret" not in str(refused.value)
