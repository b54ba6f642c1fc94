"""The program: its list of commands, and how a run of it is set up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

import click

from txnframework.cli._error_report import run_reporting
from txnframework.cli._groups import CommandGroup, LoadedPlugins
from txnframework.cli._options import global_config_option
from txnframework.errors import PluginError
from txnframework.plugin import Command, RegisteredCommand

PROGRAM = "txnframework"
HELP = """\
Transactional messaging: atomic produce and acknowledge over many topics.

One TOML file names the stores and the plugins. The program reads --config FILE, otherwise the file that the environment
variable TXNFRAMEWORK_CONFIG names, otherwise ./txnframework.toml. Without a file, data is stored in one database in
./txnframework-data.

'txnframework init' writes a configuration file, 'txnframework check' validates it, 'txnframework plugins' lists the
installed plugins, and 'txnframework doctor' finds out what is wrong.
"""
EPILOG = "Exit status: 0 success, 1 failure or a negative result, 2 invalid usage, 130 interrupted."


def _own(module: str, name: str, help_: str) -> Command:
    def load() -> click.Command:
        command: click.Command = getattr(import_module(f"txnframework.cli.{module}"), name.replace("-", "_"))
        return command

    return Command(name, help_, load)


OWN = (
    _own("_copy", "audit", "Compare two deployments by counts and hashes."),
    _own("_configuration", "check", "Validate a configuration file."),
    _own("_copy", "copy", "Copy metadata and messages to the empty stores of another configuration."),
    _own("_doctor", "doctor", "Find out what is wrong, and what to do."),
    _own("_explain", "explain", "Explain an error by its code or class."),
    _own("_configuration", "init", "Write a commented configuration file."),
    _own("_maintenance", "maintain", "Run one round of background maintenance."),
    _own("_metrics", "metrics", "Export metrics about the stores for Prometheus."),
    _own("_plugin_template", "new-plugin", "Write a distribution with a plugin, to start from."),
    _own("_configuration", "plugins", "List the installed plugins."),
    _own("_restore", "restore", "Repair metadata and ledger after restoring one from a backup."),
    _own("_serve", "serve", "Serve topics to clients of another system."),
    _own("_server", "server", "Run a server for development, until Ctrl-C."),
    _own("_subscription", "subscription", "Manage the subscriptions of a topic."),
    _own("_topic", "topic", "Manage topics; send and print messages."),
    _own("_transaction", "transaction", "Inspect transactions, and end abandoned ones."),
)
"""The core's own commands; like commands of plugins, they are listed without being imported."""


def make_group() -> CommandGroup:
    """Return the group with the core's own commands."""
    group = CommandGroup(
        PROGRAM,
        help=HELP,
        epilog=EPILOG,
        context_settings={"help_option_names": ["-h", "--help"]},
        no_args_is_help=True,
        params=[global_config_option()],
        own=OWN,
    )
    return click.version_option(_version(), prog_name=PROGRAM)(group)


def run(arguments: Sequence[str], extra: Sequence[object] = ()) -> int:
    """Run the command line with the installed plugins and those in ``extra``; return its exit status."""
    group = make_group()
    return run_reporting(group, arguments, PROGRAM, LoadedPlugins(extra, partial(_command_errors, group)))


def _command_errors(top: CommandGroup, commands: Mapping[str, RegisteredCommand]) -> Iterator[PluginError]:
    """Yield the errors of plugins' commands that are in no existing group, or have the name of a command of core."""
    groups = {one.group_name: one for one in (top, *top.load_own()) if isinstance(one, CommandGroup)}
    for name, registered in commands.items():
        group = groups.get(registered.command.group)
        if group is None:
            known = ", ".join(sorted(filter(None, groups)))
            yield registered.origin.error(f"provides the command {name!r} in an unknown group (allowed: {known})")
        elif registered.command.name in group.own_names():
            yield registered.origin.error(f"provides the command {name!r}, which core has already")


def _version() -> str:
    try:
        return version(PROGRAM)
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"
