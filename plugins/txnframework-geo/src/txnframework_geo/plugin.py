"""Plugin hook: the command ``txnframework replicate``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from txnframework.plugin import Command, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def txnframework_commands() -> Iterable[Command]:
    """Return the command; its dependencies (click, rich) are imported when it is used."""
    return (Command("replicate", "Replicate committed transactions, whole, to another deployment.", _replicate),)


def _replicate() -> click.Command:
    from txnframework_geo.command import replicate

    return replicate
