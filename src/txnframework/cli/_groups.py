"""Groups of commands: the core's own, and those that plugins bring, which are imported when they are used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from txnframework.cli._loaded import Loaded
from txnframework.errors import TxnFrameworkError
from txnframework.plugin import Command, RegisteredCommand

BROUGHT_BY = {
    "compare": "txnframework-compare",
    "demo": "txnframework-spark",
    "job": "txnframework-spark",
    "pipeline": "txnframework-spark",
    "simulate": "txnframework-simulation",
    "sql": "txnframework-sql",
    "torture": "txnframework-simulation",
    "transaction log-batching": "txnframework-legacy",
    "transaction pending-ack-batching": "txnframework-legacy",
}
"""Commands that this project's own plugins bring, to say so to somebody who lacks them."""


class CommandGroup(click.Group):
    """
    A group that lists commands without importing them: those of plugins, and its own where they are given as ``own``.

    ``place``: its name as plugins give it (``Command.group``); empty: the whole command line.
    """

    def __init__(self, *arguments: Any, place: str = "", own: Sequence[Command] = (), **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.place = place
        self._own = {one.name: one for one in own}

    def own_names(self) -> set[str]:
        """Return the names of the core's commands here."""
        return {*self.commands, *self._own}

    def load_own(self) -> Iterator[click.Command]:
        """Import and return the core's commands here."""
        for name, one in self._own.items():
            yield self.commands.setdefault(name, one.load())
        yield from (command for name, command in self.commands.items() if name not in self._own)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names; the core's own win over a plugin's."""
        return sorted({*self.own_names(), *self._brought(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, importing it if that was not done yet."""
        if cmd_name in self._own:
            return self.commands.setdefault(cmd_name, self._own[cmd_name].load())
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        registered = self._brought(ctx).get(cmd_name)
        return _imported(registered) if registered else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Add, to the error for an unknown command, who brings it, and the plugins that are broken."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as exc:
            notes = [f"Note: {error}" for error in _loaded(ctx).errors_of_commands]
            full_name = f"{self.place} {args[0]}".strip()
            if full_name in BROUGHT_BY:
                notes.append(f"The distribution {BROUGHT_BY[full_name]} brings it, which is not installed.")
            raise click.UsageError("\n".join([exc.format_message(), *notes]), ctx=exc.ctx) from exc

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from their names and help texts alone."""
        brought = self._brought(ctx)
        rows = []
        for name in self.list_commands(ctx):
            if name in self.commands:
                rows.append((name, self.commands[name].get_short_help_str(80)))
            else:
                rows.append((name, self._own[name].help if name in self._own else brought[name].command.help))
        with formatter.section("Commands"):
            formatter.write_dl(rows)
        if _loaded(ctx).errors_of_commands and not self.place:
            with formatter.section("Plugins that cannot be used"):
                for error in _loaded(ctx).errors_of_commands:
                    formatter.write_text(str(error))

    def _brought(self, ctx: click.Context) -> dict[str, RegisteredCommand]:
        if ctx.find_object(Loaded) is None:
            return {}  # the documentation walks through the core's own commands
        commands = _loaded(ctx).commands.values()
        return {one.command.name: one for one in commands if one.command.group == self.place}


def _loaded(ctx: click.Context) -> Loaded:
    loaded = ctx.find_object(Loaded)
    if loaded is None:
        raise RuntimeError("the command group runs with the loaded plugins as its object")
    return loaded


def _imported(registered: RegisteredCommand) -> click.Command:
    name, origin = registered.command.full_name, registered.origin
    try:
        command: object = registered.command.load()
    except TxnFrameworkError:
        raise
    except Exception as exc:  # whatever a foreign module raises while it is imported
        raise origin.error(f"cannot load its command {name!r}: {type(exc).__name__}: {exc}") from exc
    if not isinstance(command, click.Command):
        raise origin.error(
            f"gave a value of type {type(command).__name__} as its command {name!r}, not a click command"
        )
    return command
