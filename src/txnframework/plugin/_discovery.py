"""Discovery of plugins: entry points, and objects that a program passes in, through pluggy, into one registry."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pluggy

from txnframework.errors import PluginError
from txnframework.plugin import _hooks
from txnframework.plugin._contract import verify_provider
from txnframework.plugin._errors import Origin, origin_of_entry_point, origin_of_object
from txnframework.plugin._providers import (
    COMMANDS_HOOK,
    HOOKS,
    INTERFACES,
    SERVER_ROLE,
    SERVERS_HOOK,
    Command,
    EmbeddedServer,
    Provider,
    Role,
)
from txnframework.plugin._registry import PluginRegistry, Registered, RegisteredCommand, RegisteredServer

_LOG = logging.getLogger("txnframework.plugin")
_NAME = re.compile(r"[a-z][a-z0-9_.-]*")


def load_plugins(
    extra: Iterable[object] = (), *, on_error: Callable[[PluginError], None] | None = None
) -> PluginRegistry:
    """
    Return the installed plugins (entry-point group ``txnframework``) and those in ``extra``.

    ``extra`` holds modules or objects with hook implementations, like the target of an entry point; one that is
    installed as well is loaded once.

    An installed plugin that cannot be used is left out with a warning, because the program may not need it. If the
    program does, the registry raises the reason when the name is requested. A name of two plugins is neither's.

    :param on_error: called with the error of each plugin that cannot be used, also of one in ``extra``; nothing is
        raised and no warning is logged.
    :raises PluginError: a plugin in ``extra`` has an unknown hook, or uses a name that another plugin has.
    :raises PluginContractError: the class of a plugin in ``extra`` does not keep the contract of its role.
    """
    loading = _Loading(on_error, commands_only=False)
    loading.run(extra)
    return PluginRegistry(loading.providers, loading.commands, loading.servers, loading.left_out, loading.contested)


def load_commands(
    extra: Iterable[object] = (), *, on_error: Callable[[PluginError], None] | None = None
) -> Mapping[str, RegisteredCommand]:
    """
    Return the commands of the same plugins by their full names, without calling any other hook.

    Used for listings and help texts, which thus import no store and no driver. A plugin whose other hooks are broken
    fails only in ``load_plugins``. Errors are handled as there.
    """
    loading = _Loading(on_error, commands_only=True)
    loading.run(extra)
    return loading.commands


class _Loading:
    """What has been loaded: commands, or everything; a plugin is added completely or not at all."""

    def __init__(self, on_error: Callable[[PluginError], None] | None, *, commands_only: bool) -> None:
        self.providers: dict[Role, dict[str, Registered]] = {} if commands_only else {role: {} for role in Role}
        self.commands: dict[str, RegisteredCommand] = {}
        self.servers: dict[str, RegisteredServer] = {}
        self.left_out: list[PluginError] = []
        self.contested: dict[tuple[str, str], PluginError] = {}
        """The names of a role that two plugins claim."""
        self._commands_only = commands_only
        self._on_error = on_error
        self._entry_points: dict[str, Origin] = {}
        self._plugins: list[object] = []

    def run(self, extra: Iterable[object]) -> None:
        # Not pluggy's load_setuptools_entrypoints: of two distributions with one entry-point name it silently skips the
        # second, and it does not say which plugin's import failed.
        for entry_point in sorted(entry_points(group=_hooks.GROUP), key=lambda one: one.name):
            self.attempt(partial(self.add_entry_point, entry_point), self._on_error or _warn)
        for plugin in extra:
            self.attempt(partial(self.add, plugin, origin_of_object(plugin)), self._on_error)

    def attempt(self, step: Callable[[], None], on_error: Callable[[PluginError], None] | None) -> None:
        try:
            step()
        except PluginError as exc:
            if on_error is None:
                raise
            self.left_out.append(exc)
            on_error(exc)

    def add_entry_point(self, entry_point: EntryPoint) -> None:
        origin = origin_of_entry_point(entry_point)
        other = self._entry_points.setdefault(entry_point.name, origin)
        if other is not origin:
            raise origin.error(f"and {other} both have the entry point {entry_point.name!r}; uninstall one of them")
        try:
            plugin = entry_point.load()
        except Exception as exc:  # any error that a foreign module raises while it is imported
            raise origin.error(
                f"cannot be loaded: importing its entry point {entry_point.name!r} ({entry_point.value}) "
                f"failed with {type(exc).__name__}: {exc}"
            ) from exc
        self.add(plugin, origin)

    def add(self, plugin: object, origin: Origin) -> None:
        if any(one is plugin for one in self._plugins):
            return
        hooks = _hooks_of(plugin, origin)
        providers = [one for role in self.providers for one in _providers(hooks, role, origin)]
        commands = list(_commands(hooks, origin))
        servers = [] if self._commands_only else list(_servers(hooks, origin))
        for new in providers:
            kept = self.providers[new.role].get(new.provider.name)
            if kept is not None:
                raise self.twice(new.role, new.provider.name, new.origin, kept.origin)
        for command in commands:
            brought = self.commands.get(command.command.full_name)
            if brought is not None:
                raise self.twice("command", command.command.full_name, command.origin, brought.origin)
        for server in servers:
            offered = self.servers.get(server.server.name)
            if offered is not None:
                raise self.twice(SERVER_ROLE, server.server.name, server.origin, offered.origin)
        self._plugins.append(plugin)
        for new in providers:
            self.providers[new.role][new.provider.name] = new
        for command in commands:
            self.commands[command.command.full_name] = command
        for server in servers:
            self.servers[server.server.name] = server

    def twice(self, role: str, name: str, new: Origin, kept: Origin) -> PluginError:
        error = new.error(f"and {kept} both provide the {role} {name!r}; uninstall one of them")
        self.contested[role, name] = error
        return error


def _warn(error: PluginError) -> None:
    _LOG.warning("a plugin is left out: %s", error)


def _hooks_of(plugin: object, origin: Origin) -> pluggy.HookRelay:
    """
    Return the hooks of one plugin alone, checked against the specifications.

    Each plugin has a plugin manager of its own. So the results of a hook are known to be this plugin's, and errors can
    name the plugin.
    """
    found = pluggy.PluginManager(_hooks.GROUP)
    found.add_hookspecs(_hooks)
    try:
        found.register(plugin)
        found.check_pending()
    except pluggy.PluginValidationError as exc:
        raise origin.error(f"does not fit the hooks of this release: {' '.join(str(exc).split())}") from exc
    if not found.get_hookcallers(plugin):
        raise origin.error("has no hook implementation: decorate its hook functions with txnframework.plugin.hookimpl")
    return found.hook


def _results(hooks: pluggy.HookRelay, hook: str, kind: type[Any], origin: Origin) -> Iterator[Any]:
    try:
        results = [list(result) for result in getattr(hooks, hook)()]
    except Exception as exc:  # any error of a foreign function, or of a result that is no iterable
        raise origin.error(f"failed in its hook {hook}: {type(exc).__name__}: {exc}") from exc
    names: set[str] = set()
    for result in results:
        for item in result:
            if not isinstance(item, kind):
                raise origin.error(
                    f"returned a value of type {type(item).__name__} from {hook}, which takes {kind.__name__} values"
                )
            if not _NAME.fullmatch(item.name):
                raise origin.error(
                    f"gave the name {item.name!r} in {hook}; "
                    "a name is lower-case letters, digits, '_', '-', '.', a letter first"
                )
            name = item.full_name if isinstance(item, Command) else item.name
            if name in names:
                raise origin.error(f"gave the name {name!r} twice in {hook}")
            names.add(name)
            yield item


def _providers(hooks: pluggy.HookRelay, role: Role, origin: Origin) -> Iterator[Registered]:
    for provider in _results(hooks, HOOKS[role], Provider, origin):
        if not isinstance(provider.implementation, type):
            raise origin.error(f"gave no class as the implementation of the {role} {provider.name!r}")
        verify_provider(INTERFACES[role], provider, origin)
        yield Registered(role, provider, origin)


def _commands(hooks: pluggy.HookRelay, origin: Origin) -> Iterator[RegisteredCommand]:
    for command in _results(hooks, COMMANDS_HOOK, Command, origin):
        yield RegisteredCommand(command, origin)


def _servers(hooks: pluggy.HookRelay, origin: Origin) -> Iterator[RegisteredServer]:
    for server in _results(hooks, SERVERS_HOOK, EmbeddedServer, origin):
        yield RegisteredServer(server, origin)
