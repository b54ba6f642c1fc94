"""``txnframework maintain``: background maintenance, once and in the foreground."""

from __future__ import annotations

from pathlib import Path

import click

from txnframework.cli.output import output_option, print_change
from txnframework.cli.stores import LoadedPlugins, config_option, with_client


@click.command()
@config_option
@output_option
@click.pass_obj
def maintain(loaded: LoadedPlugins, config: Path | None, output: str) -> None:
    """
    Run one round of background maintenance.

    Clients do this work in the background; run it from a scheduler if all your programs are short-lived. One round
    aborts transactions that are overdue or whose process is gone, and settles ended ones. It trims messages that no
    subscription needs, as [retention] allows, and deletes records of trimmed messages. It finishes interrupted
    deletions. The amount of work of one round is bounded.
    """
    with_client(loaded, config, lambda client: client.maintain())
    print_change(output, "Done.", {"rounds": 1})
