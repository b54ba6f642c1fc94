"""Plugin hook: the command ``txnframework compare``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from txnframework.plugin import Command, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def txnframework_commands() -> Iterable[Command]:
    """Return the command; its dependencies (click, rich, matplotlib) are imported when it is used."""
    return (Command("compare", "Measure every family of transactions side by side, on one backend.", _compare),)


def _compare() -> click.Command:
    from txnframework_compare.command import compare

    return compare
