"""The command line: the core's own commands, and those that plugins bring."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

import click

from txnframework.cli._boundary import run_within
from txnframework.cli._config_option import config_option_for_all
from txnframework.cli._groups import CommandGroup
from txnframework.cli._loaded import Loaded
from txnframework.errors import PluginError
from txnframework.plugin import Command, RegisteredCommand

PROGRAM = "txnframework"
HELP = """\
Transactional messaging: atomic produce and acknowledge over many topics.

Where data is, and which plugins are used, stands in one TOML file: --config FILE, or the one that the environment
variable TXNFRAMEWORK_CONFIG names, or ./txnframework.toml. Without one, everything is in ./txnframework-data.
'txnframework init' writes a file to start from, 'txnframework check' says whether it is right, 'txnframework plugins'
shows what is installed.
"""
EPILOG = "Exit status: 0 done, 1 a check did not hold or the state forbids it, 2 something that was typed is wrong."


def _own(module: str, name: str, help_: str) -> Command:
    def load() -> click.Command:
        command: click.Command = getattr(import_module(f"txnframework.cli.{module}"), name)
        return command

    return Command(name, help_, load)


OWN = (
    _own("_commands", "check", "Say whether a configuration file is right."),
    _own("_init", "init", "Write a commented configuration file."),
    _own("_metrics", "metrics", "Tell how the stores stand, for Prometheus."),
    _own("_commands", "plugins", "List the installed plugins."),
    _own("_restore", "restore", "Make a pair again of two stores of which one was restored from a backup."),
    _own("_subscription", "subscription", "Make and look at the subscriptions of a topic, and move them."),
    _own("_topic", "topic", "Make, change and look at topics; send to them and read them."),
    _own("_transaction", "transaction", "Look at transactions, and end those that nobody else will."),
    _own("_commands", "upkeep", "Do once what clients do in the background."),
)
"""The core's own commands, which are listed and imported as those of plugins are."""


def make_group() -> CommandGroup:
    """Return the group with the core's own commands."""
    group = CommandGroup(
        PROGRAM,
        help=HELP,
        epilog=EPILOG,
        context_settings={"help_option_names": ["-h", "--help"]},
        no_args_is_help=True,
        params=[config_option_for_all()],
        own=OWN,
    )
    return click.version_option(_version(), prog_name=PROGRAM)(group)


def run(arguments: Sequence[str], extra: Sequence[object] = ()) -> int:
    """Run the command line with the installed plugins and those in ``extra``; return its exit status."""
    group = make_group()
    return run_within(group, arguments, PROGRAM, Loaded(extra, lambda brought: _misplaced(group, brought)))


def _misplaced(top: CommandGroup, brought: Mapping[str, RegisteredCommand]) -> Iterator[PluginError]:
    """Return what is wrong with commands of plugins that nobody can type."""
    groups = {one.place: one for one in (top, *top.load_own()) if isinstance(one, CommandGroup)}
    for name, registered in brought.items():
        group = groups.get(registered.command.group)
        if group is None:
            known = ", ".join(sorted(filter(None, groups)))
            yield registered.origin.error(f"brings a command {name!r}, for no group that takes one ({known})")
        elif registered.command.name in group.own_names():
            yield registered.origin.error(f"brings a command {name!r}, which is the core's own")


def _version() -> str:
    try:
        return version(PROGRAM)
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"
