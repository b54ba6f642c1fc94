from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from zope.interface import implementer

from txnframework.environment import SystemEnvironment
from txnframework.errors import ConfigurationError, PluginContractError, PluginError, UnknownPlugin
from txnframework.interfaces import IDispatcher
from txnframework.model import Ordering, SubscriptionType
from txnframework.plugin import (
    Command,
    DispatcherContext,
    PluginRegistry,
    Provider,
    Role,
    StoreContext,
    hookimpl,
    load_plugins,
    options_as,
)
from txnframework.plugin._errors import unknown_plugin


@implementer(IDispatcher)
class RoundRobin:
    subscription_type = "zz_round"
    ordering = Ordering.KEY
    stands_by = True

    def __init__(self, context: DispatcherContext) -> None:
        self.options = options_as(context.options, RoundOptions)

    def attach(self, consumer: Any) -> None: ...
    def detach(self, consumer_id: int) -> Any: ...
    def permit(self, consumer_id: int, messages: int) -> None: ...
    def assign(self, waiting: Any) -> Any: ...
    def released(self, positions: Any) -> None: ...


class RoundOptions(msgspec.Struct, frozen=True):
    turns: int = 3


async def open_round(context: DispatcherContext) -> Any:
    return RoundRobin(context)


def provider(name: str = "zz_round", open_: Any = open_round, kind: Any = RoundRobin, options: Any = None) -> Any:
    return Provider(name, open_, kind, options=options)


def plugin(*results: Any, name: str = "fake") -> SimpleNamespace:
    @hookimpl
    def txnframework_dispatchers() -> list[Any]:
        return list(results)

    return SimpleNamespace(__name__=name, txnframework_dispatchers=txnframework_dispatchers)


def context(options: object = None) -> DispatcherContext:
    return DispatcherContext("segment://t/n/s/0000-ffff-0", "sub", SystemEnvironment(), options)


def test_provider_is_found_opened_and_verified() -> None:
    """A plugin that was passed in is asked for by role and name and opens its object."""
    registry = load_plugins([plugin(provider())])
    found = registry.dispatcher("zz_round")
    assert "zz_round" in registry.names(Role.DISPATCHER)
    opened = asyncio.run(registry.open(found, context()))
    assert opened.subscription_type == "zz_round"


def test_subscription_type_is_what_the_class_declares() -> None:
    """The type is known by the provider's name, without opening a dispatcher."""
    registry = load_plugins([plugin(provider())])
    assert registry.subscription_type("zz_round") == SubscriptionType("zz_round", Ordering.KEY, stands_by=True)
    with pytest.raises(UnknownPlugin):
        registry.subscription_type("zz_square")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("ordering", None, "the attribute is missing; the class has to have it"),
        ("ordering", "key", "the class has a value of type str there, not Ordering"),
        ("stands_by", 1, "the class has a value of type int there, not bool"),
    ],
)
def test_what_a_type_declares_is_verified(name: str, value: object, reason: str) -> None:
    """Clients use the class attribute before anything is opened, so an instance attribute is not enough."""
    body = {key: one for key, one in vars(RoundRobin).items() if not key.startswith("__")} | {name: value}
    kind = implementer(IDispatcher)(type("Wrong", (), {key: one for key, one in body.items() if one is not None}))
    with pytest.raises(PluginContractError) as caught:
        load_plugins([plugin(provider(kind=kind))])
    assert str(caught.value).endswith(f"IDispatcher.{name}: {reason}")


def test_options_reach_the_plugin_with_their_type() -> None:
    """The table is decoded as the provider's options type, and passed in that type."""
    registry = load_plugins([plugin(provider(options=RoundOptions))])
    found = registry.dispatcher("zz_round")
    options = registry.decode_options(found, {"turns": 5})
    opened: Any = asyncio.run(registry.open(found, context(options)))
    assert opened.options == RoundOptions(turns=5)
    with pytest.raises(ConfigurationError) as caught:
        registry.decode_options(found, {"turn": 5})
    assert str(caught.value) == "unknown key 'turn'; did you mean 'turns'? (allowed: turns)"


def test_options_for_a_plugin_that_takes_none() -> None:
    """An unused option is refused; an empty table has no options."""
    registry = load_plugins([plugin(provider())])
    found = registry.dispatcher("zz_round")
    assert registry.decode_options(found, {}) is None
    with pytest.raises(ConfigurationError, match=r"^x: dispatcher 'zz_round' takes no options$"):
        registry.decode_options(found, {"x": 1})


def test_options_as_refuses_another_type() -> None:
    """The error names the mismatch between the provider's options type and its open."""
    assert options_as(None, RoundOptions) == RoundOptions()
    with pytest.raises(PluginError, match="expected options of type RoundOptions, got str"):
        options_as("text", RoundOptions)


def test_opened_object_is_verified() -> None:
    """The opened object is checked against the role, whatever class the provider named."""

    async def open_wrong(context: DispatcherContext) -> Any:
        return object()

    registry = load_plugins([plugin(provider(open_=open_wrong), name="wrong")])
    with pytest.raises(PluginContractError) as caught:
        asyncio.run(registry.open(registry.dispatcher("zz_round"), context()))
    assert "object does not declare @implementer(IDispatcher)" in str(caught.value)
    assert "plugin 'wrong' (passed in by the program)" in str(caught.value)


def test_open_that_is_not_async() -> None:
    """A provider whose ``open`` is a class gets a clear error, instead of a TypeError from await."""
    registry = load_plugins([plugin(provider(open_=RoundRobin))])
    with pytest.raises(PluginContractError, match="it has to be 'async def'"):
        asyncio.run(registry.open(registry.dispatcher("zz_round"), context()))


def test_foreign_provider_is_refused() -> None:
    """The registry knows a provider by its role, so the provider must declare a known role."""
    with pytest.raises(ValueError, match="is not from this registry"):
        asyncio.run(PluginRegistry({}, {}).open(provider(), context()))


def test_description_names_role_distribution_and_commands() -> None:
    """`txnframework plugins` lists every role and distribution, and the commands last."""
    fake = plugin(provider())

    @hookimpl
    def txnframework_commands() -> list[Command]:
        return [Command("zz-demo", "Show something.", lambda: pytest.fail("loaded"))]

    fake.txnframework_commands = txnframework_commands
    described = load_plugins([fake]).describe()
    assert ("dispatcher", "zz_round", None, None) in [
        (one.role, one.name, one.distribution, one.version) for one in described
    ]
    assert (described[-1].role, described[-1].name) == ("command", "zz-demo")


@pytest.mark.parametrize(
    ("role", "name", "installed", "sentence"),
    [
        (
            "metadata store",
            "sqlite",
            (),
            "no metadata store named 'sqlite' is installed (installed: none); it comes with: "
            "pip install txnframework-sql",
        ),
        (
            "metadata store",
            "sqlit",
            ("sqlite", "memory"),
            "no metadata store named 'sqlit' is installed (installed: memory, sqlite); did you mean 'sqlite'?",
        ),
        (
            "transaction buffer",
            "metadat",
            (),
            "no transaction buffer named 'metadat' is installed (installed: none); did you mean 'metadata'? "
            "It comes with: pip install txnframework-metadata",
        ),
        (
            "dispatcher",
            "qqq",
            ("shared",),
            "no dispatcher named 'qqq' is installed (installed: shared); "
            "'txnframework plugins' lists all that is installed",
        ),
    ],
)
def test_unknown_name_says_what_to_do(role: str, name: str, installed: tuple[str, ...], sentence: str) -> None:
    """The error has the nearest name, the installed names, and the distribution to install if known."""
    error = unknown_plugin(role, name, installed)
    assert isinstance(error, UnknownPlugin)
    assert str(error) == sentence
    assert (error.role, error.name, error.known) == (role, name, tuple(sorted(installed)))


def test_unknown_name_through_the_registry() -> None:
    """Every typed lookup raises the same error."""
    registry = PluginRegistry({}, {})
    for find in (
        registry.metadata_store,
        registry.ledger_store,
        registry.coordinator,
        registry.buffer,
        registry.pending_ack_store,
        registry.dispatcher,
    ):
        with pytest.raises(UnknownPlugin, match="named 'zz'"):
            find("zz")


def test_what_a_store_is_opened_with_shows_no_password() -> None:
    """Passwords in the URL and in options are not shown."""
    context = StoreContext("postgresql://user:pL4inS3cret@host/db", SystemEnvironment(), {"password": "pL4inS3cret"})
    assert repr(context) == "StoreContext(url='postgresql://user:***@host/db', identity=None)"
