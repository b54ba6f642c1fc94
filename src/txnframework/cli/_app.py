"""The command line: the core's own commands, and those that plugins bring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version

import click

from txnframework.cli._boundary import run_within
from txnframework.cli._commands import check, plugins, upkeep
from txnframework.cli._groups import CommandGroup
from txnframework.cli._init import init
from txnframework.cli._loaded import Loaded
from txnframework.cli._metrics import metrics
from txnframework.cli._opening import config_option_for_all
from txnframework.cli._restore import restore
from txnframework.cli._simulate import simulate
from txnframework.cli._subscription import subscription
from txnframework.cli._topic import topic
from txnframework.cli._torture import torture
from txnframework.cli._transaction import transaction
from txnframework.errors import PluginError
from txnframework.plugin import PluginRegistry, load_plugins

PROGRAM = "txnframework"
HELP = """\
Transactional messaging: atomic produce and acknowledge over many topics.

Where data is, and which plugins are used, stands in one TOML file: --config FILE, or the one that the environment
variable TXNFRAMEWORK_CONFIG names, or ./txnframework.toml. Without one, everything is in ./txnframework-data.
'txnframework init' writes a file to start from, 'txnframework check' says whether it is right, 'txnframework plugins'
shows what is installed.
"""
EPILOG = "Exit status: 0 done, 1 a check did not hold or the state forbids it, 2 something that was typed is wrong."


def load_tolerantly(extra: Sequence[object] = ()) -> Loaded:
    """Load every plugin that can be loaded: a broken one must not take the command line away."""
    errors: list[PluginError] = []
    return Loaded(load_plugins(extra, on_error=errors.append), errors)


def make_group() -> CommandGroup:
    """Return the group with the core's own commands."""
    group = CommandGroup(
        PROGRAM,
        help=HELP,
        epilog=EPILOG,
        context_settings={"help_option_names": ["-h", "--help"]},
        no_args_is_help=True,
        params=[config_option_for_all()],
    )
    for command in (
        check,
        init,
        metrics,
        plugins,
        restore,
        simulate,
        torture,
        upkeep,
        topic,
        subscription,
        transaction,
    ):
        group.add_command(command)
    return click.version_option(_version(), prog_name=PROGRAM)(group)


def run(arguments: Sequence[str], extra: Sequence[object] = ()) -> int:
    """Run the command line with the installed plugins and those in ``extra``; return its exit status."""
    group = make_group()
    loaded = load_tolerantly(extra)
    loaded.errors += _misplaced(group, loaded.registry)
    return run_within(group, arguments, PROGRAM, loaded)


def _misplaced(top: CommandGroup, registry: PluginRegistry) -> Iterator[PluginError]:
    """Return what is wrong with commands of plugins that nobody can type."""
    groups = {one.place: one for one in (top, *top.commands.values()) if isinstance(one, CommandGroup)}
    for name, registered in registry.commands().items():
        group = groups.get(registered.command.group)
        if group is None:
            known = ", ".join(sorted(filter(None, groups)))
            yield registered.origin.error(f"brings a command {name!r}, for no group that takes one ({known})")
        elif registered.command.name in group.commands:
            yield registered.origin.error(f"brings a command {name!r}, which is the core's own")


def _version() -> str:
    try:
        return version(PROGRAM)
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"
