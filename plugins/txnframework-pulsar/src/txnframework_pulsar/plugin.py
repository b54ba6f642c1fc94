"""Plugin hook: the command ``txnframework serve pulsar``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from txnframework.plugin import Command, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def txnframework_commands() -> Iterable[Command]:
    """Return the command; its dependencies (click, protobuf and others) are imported when it is used."""
    return (Command("pulsar", "Serve topics to clients of Apache Pulsar.", _pulsar, group="serve"),)


def _pulsar() -> click.Command:
    from txnframework_pulsar.command import pulsar

    return pulsar
