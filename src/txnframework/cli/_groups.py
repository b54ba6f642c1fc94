"""Groups of commands of core and of plugins; commands are imported when they are used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import click

from txnframework.cli._suggestions import near_names, question_of
from txnframework.errors import PluginError, TxnFrameworkError
from txnframework.plugin import Command, PluginRegistry, RegisteredCommand, load_commands, load_plugins

DISTRIBUTIONS = {
    "compare": "txnframework-compare",
    "console": "txnframework-console",
    "job": "txnframework-spark",
    "pipeline": "txnframework-spark",
    "replicate": "txnframework-geo",
    "serve pulsar": "txnframework-pulsar",
    "simulate": "txnframework-simulation",
    "sql": "txnframework-sql",
    "top": "txnframework-console",
    "torture": "txnframework-simulation",
    "transaction log-batching": "txnframework-legacy",
    "transaction pending-ack-batching": "txnframework-legacy",
}
"""The distribution of each command of this project's plugins, for the error of a command that is not installed."""

Commands = Mapping[str, RegisteredCommand]


class LoadedPlugins:
    """
    The plugins of this run, and the errors of the unusable ones; the context object of click.

    Plugins are loaded on first use. Commands are loaded separately, because a help text needs no store. Access raises
    nothing, so that a broken plugin does not break the command line.

    :param extra: plugins in addition to the installed ones.
    :param command_errors: returns the errors of commands whose group or name is invalid.
    """

    def __init__(self, extra: Sequence[object], command_errors: Callable[[Commands], Iterable[PluginError]]) -> None:
        self._extra = extra
        self._command_errors = command_errors

    @property
    def commands(self) -> Commands:
        """The commands of plugins; none is imported."""
        return self._loaded_commands[0]

    @property
    def errors_of_commands(self) -> Sequence[PluginError]:
        """Errors of the plugins whose commands cannot be listed."""
        return self._loaded_commands[1]

    @property
    def registry(self) -> PluginRegistry:
        """Everything that plugins provide."""
        return self._loaded_plugins[0]

    @property
    def errors(self) -> Sequence[PluginError]:
        """Errors of the plugins that cannot be used."""
        return self._loaded_plugins[1]

    @cached_property
    def _loaded_commands(self) -> tuple[Commands, list[PluginError]]:
        errors: list[PluginError] = []
        return load_commands(self._extra, on_error=errors.append), errors

    @cached_property
    def _loaded_plugins(self) -> tuple[PluginRegistry, list[PluginError]]:
        errors: list[PluginError] = []
        registry = load_plugins(self._extra, on_error=errors.append)
        return registry, [*errors, *self._command_errors(registry.commands())]


class CommandGroup(click.Group):
    """
    A group that lists its commands, and those of plugins, without importing them.

    ``group_name``: the name that plugins use for it (``Command.group``); empty: the program itself.
    """

    def __init__(self, *arguments: Any, group_name: str = "", own: Sequence[Command] = (), **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.group_name = group_name
        self._own = {one.name: one for one in own}

    def own_names(self) -> set[str]:
        """Return the names of the core's commands in this group."""
        return {*self.commands, *self._own}

    def load_own(self) -> Iterator[click.Command]:
        """Import and return the core's commands in this group."""
        for name, one in self._own.items():
            yield self.commands.setdefault(name, one.load())
        yield from (command for name, command in self.commands.items() if name not in self._own)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names; a command of core hides a plugin's command of the same name."""
        return sorted({*self.own_names(), *self._plugin_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, imported if necessary."""
        if cmd_name in self._own:
            return self.commands.setdefault(cmd_name, self._own[cmd_name].load())
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        registered = self._plugin_commands(ctx).get(cmd_name)
        return _imported(registered) if registered else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Add, to the error for an unknown command, similar ones, the distribution to install and broken plugins."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as exc:
            notes = [f"Note: {error}" for error in _loaded(ctx).errors_of_commands]
            full_name = f"{self.group_name} {args[0]}".strip()
            if full_name in DISTRIBUTIONS:
                notes.append(f"It {_origin_of(DISTRIBUTIONS[full_name])}")
            # Click suggests only commands that are imported already.
            near = [repr(one) for one in near_names(args[0], self.list_commands(ctx))]
            sentence = f"{exc.message} {question_of(near).capitalize()}" if near else exc.format_message()
            raise click.UsageError("\n".join([sentence, *notes]), ctx=exc.ctx) from exc

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing those that are not imported yet."""
        from_plugins = self._plugin_commands(ctx)
        rows = []
        for name in self.list_commands(ctx):
            if name in self.commands:
                rows.append((name, self.commands[name].get_short_help_str(80)))
            else:
                rows.append((name, self._own[name].help if name in self._own else from_plugins[name].command.help))
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
        else:
            for name, distribution in DISTRIBUTIONS.items():
                if name.startswith(f"{self.group_name} "):
                    formatter.write_paragraph()
                    formatter.write_text(f"'{name}' {_origin_of(distribution)}")
        if _loaded(ctx).errors_of_commands and not self.group_name:
            with formatter.section("Unusable plugins"):
                for error in _loaded(ctx).errors_of_commands:
                    formatter.write_text(str(error))

    def _plugin_commands(self, ctx: click.Context) -> dict[str, RegisteredCommand]:
        if ctx.find_object(LoadedPlugins) is None:
            return {}  # the documentation lists the core's own commands
        commands = _loaded(ctx).commands.values()
        return {one.command.name: one for one in commands if one.command.group == self.group_name}


def _origin_of(distribution: str) -> str:
    return f"is part of the distribution {distribution}, which is not installed."


def _loaded(ctx: click.Context) -> LoadedPlugins:
    loaded = ctx.find_object(LoadedPlugins)
    if loaded is None:
        raise RuntimeError("the command group needs the loaded plugins as its context object")
    return loaded


def _imported(registered: RegisteredCommand) -> click.Command:
    name, origin = registered.command.full_name, registered.origin
    try:
        command: object = registered.command.load()
    except TxnFrameworkError:
        raise
    except Exception as exc:  # any error that a foreign module raises while it is imported
        raise origin.error(f"cannot load its command {name!r}: {type(exc).__name__}: {exc}") from exc
    if not isinstance(command, click.Command):
        raise origin.error(
            f"returned a value of type {type(command).__name__} as its command {name!r}, not a click command"
        )
    return command
