"""The plugin with the commands ``txnframework simulate`` and ``txnframework torture``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from txnframework.plugin import Command, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def txnframework_commands() -> Iterable[Command]:
    """Return the commands; click and rich are imported when a command is used."""
    return (
        Command("simulate", "Run the real code in a simulation with faults, and check what clients saw.", _simulate),
        Command("torture", "Kill, pause and disconnect real processes, and check what their clients saw.", _torture),
    )


def _simulate() -> click.Command:
    from txnframework_simulation.commands.simulate import simulate

    return simulate


def _torture() -> click.Command:
    from txnframework_simulation.commands.torture import torture

    return torture
