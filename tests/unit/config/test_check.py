from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from zope.interface import implementer

from txnframework.config import check_config, load_config
from txnframework.errors import ConfigurationError, InvalidInput, UnknownPlugin
from txnframework.interfaces import (
    ILedgerStore,
    IMetadataStore,
    IPendingAckStore,
    ITransactionBuffer,
    ITransactionCoordinator,
)
from txnframework.plugin import PluginRegistry, Provider, hookimpl, load_plugins


class StoreOptions(msgspec.Struct, frozen=True):
    pool: int = 5


def implementation(interface: Any) -> Any:
    """Make a class with every method of the role, which is never opened here."""
    methods: dict[str, Any] = {}
    for name, description in interface.namesAndDescriptions(all=True):
        if hasattr(description, "positional"):
            parameters = ", ".join(["self", *description.positional])
            exec(f"async def {name}({parameters}): ...", {}, methods)
    return implementer(interface)(type("Made", (), methods))


async def never(context: object) -> Any:
    raise AssertionError("a check opens nothing")


def provider(interface: Any, name: str, family: str = "", options: Any = None) -> Any:
    families = frozenset({family} if family else ())
    return Provider(name, never, implementation(interface), families, options)


def refuse(url: str) -> None:
    raise InvalidInput("its colour is not known")


def registry() -> PluginRegistry:
    hooks = {
        "txnframework_metadata_stores": [
            provider(IMetadataStore, "zz", options=StoreOptions),
            provider(IMetadataStore, "no-messages"),
        ],
        "txnframework_ledger_stores": [
            provider(ILedgerStore, "zz"),
            dataclasses.replace(provider(ILedgerStore, "zz-strict"), check_url=refuse),
        ],
        "txnframework_coordinators": [provider(ITransactionCoordinator, "zz-one", "one")],
        "txnframework_buffers": [
            provider(ITransactionBuffer, "zz-one", "one"),
            provider(ITransactionBuffer, "zz-two", "two"),
        ],
        "txnframework_pending_ack_stores": [provider(IPendingAckStore, "zz-one", "one")],
    }
    fake = SimpleNamespace(__name__="fake")
    for hook, found in hooks.items():

        def returned(found: Any = found) -> Any:
            return found

        setattr(fake, hook, hookimpl(returned))
    return load_plugins([fake])


STORES: Mapping[str, Any] = {"metadata": {"url": "zz:"}}


def test_right_configuration_passes() -> None:
    """Names that are installed and options that fit raise nothing; nothing is opened."""
    table = {
        "metadata": {"url": "zz://u:p@h", "options": {"pool": 2}},
        "domains": {"segment": dict.fromkeys(("coordinator", "buffer", "pending_ack"), "zz-one")},
    }
    check_config(load_config(table), registry())


@pytest.mark.parametrize(
    ("table", "path", "reason"),
    [
        ({"metadata": {"url": "zzz:"}}, "metadata.url", "no metadata store named 'zzz' is installed"),
        ({"metadata": {"url": "zz:"}, "ledger": {"url": "zzy:"}}, "ledger.url", "no ledger store named 'zzy'"),
        (
            {"metadata": {"url": "no-messages:"}},
            "ledger.url",
            "'no-messages' cannot store messages; name a ledger store (installed: ",
        ),
        (
            {"metadata": {"url": "u:sesame@h", "options": {}}},
            "metadata.url",
            "no metadata store named 'u' is installed",
        ),
        ({"metadata": {"url": "sesame"}}, "metadata.url", "expected a URL such as 'scheme://host/path'"),
        ({"metadata": {"url": ""}}, "metadata.url", "found '', expected a URL such as 'scheme://host/path'"),
        (
            {"metadata": {"url": "zz:", "options": {"pol": 1}}},
            "metadata.options",
            "unknown key 'pol'; did you mean 'pool'? (allowed: pool)",
        ),
        (
            {"metadata": {"url": "zz:", "options": {"pool": "x"}}},
            "metadata.options.pool",
            "expected an integer, found 'x'",
        ),
        (
            {**STORES, "ledger": {"options": {"pool": 1}}},
            "ledger.options.pool",
            "ledger store 'zz' takes no options",
        ),
        (
            {**STORES, "domains": {"segment": {"buffer": "zz-on"}}},
            "domains.segment.buffer",
            "did you mean 'zz-one'?",
        ),
        (
            {**STORES, "namespaces": {"a/b": {"persistent": {"pending_ack": "zz-on"}}}},
            'namespaces."a/b".persistent.pending_ack',
            "did you mean 'zz-one'?",
        ),
        (
            {**STORES, "domains": {"segment": {"coordinator": "zz-one", "buffer": "zz-two", "pending_ack": "zz-one"}}},
            "domains.segment.buffer",
            "'zz-two' belongs to family 'two', but coordinator 'zz-one' belongs to family 'one'; "
            "the plugins of a domain must share one",
        ),
        ({**STORES, "buffers": {"zz-on": {}}}, "buffers.zz-on", "did you mean 'zz-one'?"),
        (
            {**STORES, "pending_acks": {"zz-one": {"a": 1}}},
            "pending_acks.zz-one.a",
            "pending-ack store 'zz-one' takes no options",
        ),
        ({**STORES, "ledger": {"url": "zz-strict:?colour=blue"}}, "ledger.url", "its colour is not known"),
    ],
)
def test_wrong_name_or_option_is_placed(table: dict[str, Any], path: str, reason: str) -> None:
    """The error names the path in the file, the file, what is wrong and the nearest name."""
    with pytest.raises(ConfigurationError) as caught:
        check_config(load_config(table), registry(), "txn.toml")
    assert caught.value.path == path
    assert caught.value.file == "txn.toml"
    assert reason in caught.value.reason
    assert str(caught.value).startswith(f"txn.toml: {path}: ")


def test_unknown_name_keeps_its_cause() -> None:
    """The cause of the error has the known names as data."""
    with pytest.raises(ConfigurationError) as caught:
        check_config(load_config({"metadata": {"url": "zzz:"}}), registry())
    assert isinstance(caught.value.__cause__, UnknownPlugin)
    assert "zz" in caught.value.__cause__.known


def test_default_domain_without_its_plugins_is_let_pass() -> None:
    """A domain that is not configured must not prevent the others from working."""
    check_config(load_config(STORES), registry())


@pytest.mark.parametrize(
    ("override", "path", "has"),
    [
        ({"coordinator": "zz-one", "buffer": "zz-one"}, "pending_ack", "coordinator 'zz-one' and buffer 'zz-one'"),
        ({"buffer": "zz-two"}, "coordinator", "buffer 'zz-two'"),
    ],
)
def test_a_domains_plugins_come_whole(
    override: dict[str, str], path: str, has: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing default is named with the domain's other plugins, if one of the three is installed."""
    only_ours = registry()

    def missing(role: str, find: Any) -> Any:
        def look(name: str) -> Any:
            if not name.startswith("zz"):
                raise UnknownPlugin(role, name, ())
            return find(name)

        return look

    for role in ("coordinator", "buffer", "pending_ack_store"):
        monkeypatch.setattr(only_ours, role, missing(role, getattr(only_ours, role)))
    check_config(load_config(STORES), only_ours)
    with pytest.raises(ConfigurationError, match=f"a domain needs all three plugins, and has {has}$") as caught:
        check_config(load_config({**STORES, "namespaces": {"a/b": {"persistent": override}}}), only_ours)
    assert caught.value.path == f'namespaces."a/b".persistent.{path}'
