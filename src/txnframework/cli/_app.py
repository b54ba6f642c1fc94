"""The command group: the core's own commands, and those that plugins bring, each imported when it is used."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

import click

from txnframework.cli._boundary import run_within
from txnframework.cli._commands import check, plugins, upkeep
from txnframework.cli._init import init
from txnframework.cli._loaded import Loaded
from txnframework.cli._metrics import metrics
from txnframework.cli._restore import restore
from txnframework.cli._subscription import subscription
from txnframework.cli._topic import topic
from txnframework.cli._transaction import transaction
from txnframework.errors import PluginError, TxnFrameworkError
from txnframework.plugin import RegisteredCommand, load_plugins

PROGRAM = "txnframework"
HELP = """\
Transactional messaging: atomic produce and acknowledge over many topics.

Where data is, and which plugins are used, stands in one TOML file: --config FILE, or the one that the environment
variable TXNFRAMEWORK_CONFIG names, or ./txnframework.toml. Without one, everything is in ./txnframework-data.
'txnframework init' writes a file to start from, 'txnframework check' says whether it is right, 'txnframework plugins'
shows what is installed.
"""
BROUGHT_BY = {
    "demo": "txnframework-spark",
    "job": "txnframework-spark",
    "pipeline": "txnframework-spark",
    "sql": "txnframework-sql",
}
"""Commands that this project's own plugins bring, to say so to somebody who lacks them."""

EPILOG = "Exit status: 0 done, 1 a check did not hold or the state forbids it, 2 something that was typed is wrong."


def load_tolerantly(extra: Sequence[object] = ()) -> Loaded:
    """Load every plugin that can be loaded: a broken one must not take the command line away."""
    errors: list[PluginError] = []
    return Loaded(load_plugins(extra, on_error=errors.append), errors)


class CommandGroup(click.Group):
    """A group that lists plugins' commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names; the core's own win over a plugin's."""
        return sorted({*super().list_commands(ctx), *_brought(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, importing it if a plugin brings it."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        registered = _brought(ctx).get(cmd_name)
        return _imported(registered) if registered else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Add, to the error for an unknown command, who brings it, and the plugins that are broken."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as exc:
            notes = [f"Note: {error}" for error in _loaded(ctx).errors]
            if args[0] in BROUGHT_BY:
                notes.append(f"The distribution {BROUGHT_BY[args[0]]} brings it, which is not installed.")
            raise click.UsageError("\n".join([exc.format_message(), *notes]), ctx=exc.ctx) from exc

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from their names and help texts alone."""
        brought = _brought(ctx)
        rows = []
        for name in self.list_commands(ctx):
            own = self.commands.get(name)
            rows.append((name, own.get_short_help_str(80) if own else brought[name].command.help))
        with formatter.section("Commands"):
            formatter.write_dl(rows)
        if _loaded(ctx).errors:
            with formatter.section("Plugins that cannot be used"):
                for error in _loaded(ctx).errors:
                    formatter.write_text(str(error))


def _loaded(ctx: click.Context) -> Loaded:
    loaded = ctx.find_object(Loaded)
    if loaded is None:
        raise RuntimeError("the command group runs with the loaded plugins as its object")
    return loaded


def _brought(ctx: click.Context) -> dict[str, RegisteredCommand]:
    return dict(_loaded(ctx).registry.commands())


def _imported(registered: RegisteredCommand) -> click.Command:
    name, origin = registered.command.name, registered.origin
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


def make_group() -> CommandGroup:
    """Return the group with the core's own commands."""
    group = CommandGroup(
        PROGRAM,
        help=HELP,
        epilog=EPILOG,
        context_settings={"help_option_names": ["-h", "--help"]},
        no_args_is_help=True,
    )
    for command in (check, init, metrics, plugins, restore, upkeep, topic, subscription, transaction):
        group.add_command(command)
    return click.version_option(_version(), prog_name=PROGRAM)(group)


def run(arguments: Sequence[str], extra: Sequence[object] = ()) -> int:
    """Run the command line with the installed plugins and those in ``extra``; return its exit status."""
    group = make_group()
    loaded = load_tolerantly(extra)
    for name, registered in loaded.registry.commands().items():
        if name in group.commands:
            loaded.errors.append(registered.origin.error(f"brings a command {name!r}, which is the core's own"))
    return run_within(group, arguments, PROGRAM, loaded)


def _version() -> str:
    try:
        return version(PROGRAM)
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"
