"""``txnframework serve``: gateways of plugins, by which clients of other systems use the stores."""

from __future__ import annotations

import click

from txnframework.cli._groups import CommandGroup


@click.group(cls=CommandGroup, group_name="serve", no_args_is_help=True)
def serve() -> None:
    """Serve topics to clients of another system. Plugins provide the gateways."""
