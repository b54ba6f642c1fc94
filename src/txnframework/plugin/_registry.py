"""The plugins of one process by role and name; ``load_plugins`` builds the registry once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from txnframework.errors import PluginContractError, PluginError
from txnframework.model.dispatch import SubscriptionType
from txnframework.plugin._contract import declared_interfaces, verify_provider
from txnframework.plugin._errors import Origin, unknown_plugin
from txnframework.plugin._providers import INTERFACES, SERVER_ROLE, Command, EmbeddedServer, Provider, Role
from txnframework.tables import KeyPath, decode

if TYPE_CHECKING:
    from txnframework.interfaces import (
        IDispatcher,
        ILedgerStore,
        IMetadataStore,
        IObserver,
        IPendingAckStore,
        ITransactionBuffer,
        ITransactionCoordinator,
    )
    from txnframework.plugin._contexts import (
        CoordinatorContext,
        DispatcherContext,
        ObserverContext,
        SegmentContext,
        StoreContext,
        SubscriptionContext,
    )

C = TypeVar("C")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class PluginDescription:
    """
    One line of ``txnframework plugins``.

    ``role`` is the role's name, ``embedded server`` or ``command``; ``capabilities`` are the names of the marker
    sub-interfaces that the class promises; ``distribution`` and ``version`` are None for a plugin that a program passed
    in.
    """

    role: str
    name: str
    distribution: str | None
    version: str | None
    capabilities: tuple[str, ...] = ()
    families: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Registered:
    """A provider and its origin."""

    role: Role
    provider: Provider[Any, Any]
    origin: Origin


@dataclass(frozen=True, slots=True)
class RegisteredCommand:
    """A command and its origin."""

    command: Command
    origin: Origin


@dataclass(frozen=True, slots=True)
class RegisteredServer:
    """An embedded server and its origin."""

    server: EmbeddedServer
    origin: Origin


class PluginRegistry:
    """
    Providers by role and name, commands by their full names, and embedded servers.

    A request for a name that is not installed raises UnknownPlugin, which gives the nearest known name, the
    distribution to install, and why installed plugins were left out. A request for a name in ``contested``, by role and
    name, raises its error. The registry opens nothing by itself and keeps no opened object.
    """

    def __init__(
        self,
        providers: Mapping[Role, Mapping[str, Registered]],
        commands: Mapping[str, RegisteredCommand],
        servers: Mapping[str, RegisteredServer] = MappingProxyType({}),
        left_out: Sequence[PluginError] = (),
        contested: Mapping[tuple[str, str], PluginError] = MappingProxyType({}),
    ) -> None:
        self._providers = {role: dict(providers.get(role, {})) for role in Role}
        self._commands = dict(commands)
        self._servers = dict(servers)
        self._left_out = tuple(left_out)
        self._contested = dict(contested)
        self._verified: set[tuple[Role, type, tuple[object, ...]]] = set()

    def metadata_store(self, name: str) -> Provider[StoreContext, IMetadataStore]:
        """Return the metadata store for URLs with the scheme ``name``, or raise UnknownPlugin."""
        return self._provider(Role.METADATA_STORE, name)

    def ledger_store(self, name: str) -> Provider[StoreContext, ILedgerStore]:
        """Return the ledger store for URLs with the scheme ``name``, or raise UnknownPlugin."""
        return self._provider(Role.LEDGER_STORE, name)

    def coordinator(self, name: str) -> Provider[CoordinatorContext, ITransactionCoordinator]:
        """Return the coordinator ``name``, or raise UnknownPlugin."""
        return self._provider(Role.COORDINATOR, name)

    def buffer(self, name: str) -> Provider[SegmentContext, ITransactionBuffer]:
        """Return the transaction buffer ``name``, or raise UnknownPlugin."""
        return self._provider(Role.BUFFER, name)

    def pending_ack_store(self, name: str) -> Provider[SubscriptionContext, IPendingAckStore]:
        """Return the pending-ack store ``name``, or raise UnknownPlugin."""
        return self._provider(Role.PENDING_ACK_STORE, name)

    def dispatcher(self, name: str) -> Provider[DispatcherContext, IDispatcher]:
        """Return the dispatcher for subscriptions of the type ``name``, or raise UnknownPlugin."""
        return self._provider(Role.DISPATCHER, name)

    def observer(self, name: str) -> Provider[ObserverContext, IObserver]:
        """Return the observer ``name``, or raise UnknownPlugin."""
        return self._provider(Role.OBSERVER, name)

    def subscription_type(self, name: str) -> SubscriptionType:
        """Return the declaration of the dispatcher for subscriptions of the type ``name``, or raise UnknownPlugin."""
        declared = self.dispatcher(name).implementation
        return SubscriptionType(name, declared.ordering, declared.stands_by)

    def commands(self) -> Mapping[str, RegisteredCommand]:
        """Return the commands of plugins, in order of their full names; none is loaded."""
        return dict(sorted(self._commands.items()))

    def embedded_server(self, name: str) -> EmbeddedServer:
        """Return the embedded server ``name``, or raise UnknownPlugin."""
        return self._find(SERVER_ROLE, name, self._servers).server

    def names(self, role: Role) -> tuple[str, ...]:
        """Return the installed names of a role, in order."""
        return tuple(sorted(self._providers[role]))

    async def open(self, provider: Provider[C, R], context: C) -> R:
        """
        Open an object and verify it, attributes included; of one class only the first, because a process opens many.

        :raises PluginContractError: the object does not keep its role's contract. It is left to the garbage collector,
            because its ``close`` is not reliable either.
        """
        registered = self._registered(provider)
        role = INTERFACES[registered.role]
        opening = provider.open(context)
        if not hasattr(opening, "__await__"):
            reason = f"Provider.open returned a {type(opening).__name__}; it has to be 'async def'"
            raise _contract_error(registered, reason)
        opened = await opening
        kind = (registered.role, type(opened), declared_interfaces(opened))
        if kind not in self._verified:
            # Its class was verified when the plugin was loaded. Processes that are forked after that share the result.
            verify_provider(role, opened, registered.origin, provider.implementation)
            self._verified.add(kind)
        return opened

    def decode_options(
        self, provider: Provider[Any, Any], table: Mapping[str, object], place: KeyPath | None = None
    ) -> object:
        """
        Return a table of the configuration as the provider's own type, to be passed as a context's ``options``.

        None if the provider takes no options. ``place`` is the table's place in the configuration, for the error.

        :raises ConfigurationError: something in the table does not fit, or the provider takes no options.
        """
        where = place or KeyPath()
        if provider.options is not None:
            return decode(table, provider.options, where)
        for key in table:
            raise (where / key).error(f"{self._registered(provider).role} {provider.name!r} takes no options")
        return None

    def describe(self) -> tuple[PluginDescription, ...]:
        """Return the installed plugins by role and name, then embedded servers and commands."""
        lines = [_description(registered) for role in Role for _, registered in sorted(self._providers[role].items())]
        others = [(SERVER_ROLE, name, one.origin) for name, one in sorted(self._servers.items())]
        others += [("command", name, one.origin) for name, one in self.commands().items()]
        lines += [PluginDescription(role, name, origin.distribution, origin.version) for role, name, origin in others]
        return tuple(lines)

    def _provider(self, role: Role, name: str) -> Provider[Any, Any]:
        return self._find(role, name, self._providers[role]).provider

    def _find(self, role: str, name: str, installed: Mapping[str, R]) -> R:
        if (contested := self._contested.get((role, name))) is not None:
            raise contested
        if (found := installed.get(name)) is None:
            raise unknown_plugin(role, name, installed, self._left_out)
        return found

    def _registered(self, provider: Provider[Any, Any]) -> Registered:
        for role in Role:
            registered = self._providers[role].get(provider.name)
            if registered is not None and registered.provider is provider:
                return registered
        raise ValueError(f"provider {provider.name!r} is not from this registry")


def _contract_error(registered: Registered, reason: str) -> PluginContractError:
    origin = registered.origin
    role = INTERFACES[registered.role].__name__
    return PluginContractError(origin.distribution or str(origin), origin.version or "", role, None, reason)


def _description(registered: Registered) -> PluginDescription:
    provider, origin = registered.provider, registered.origin
    role = INTERFACES[registered.role]
    capabilities = sorted(
        one.__name__ for one in declared_interfaces(provider.implementation) if one.extends(role, strict=True)
    )
    return PluginDescription(
        role=str(registered.role),
        name=provider.name,
        distribution=origin.distribution,
        version=origin.version,
        capabilities=tuple(capabilities),
        families=tuple(sorted(provider.families)),
    )
