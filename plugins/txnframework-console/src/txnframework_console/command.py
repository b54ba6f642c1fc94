"""The commands ``txnframework console`` and ``txnframework top``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click
from rich.console import RenderableType
from rich.live import Live

from txnframework.cli import terminal
from txnframework.cli.addresses import is_local, parse_address
from txnframework.cli.background_client import BackgroundClient, OpenClient
from txnframework.cli.output import output_option, print_json, print_records
from txnframework.cli.stores import LoadedPlugins, client_opener, config_option, with_client
from txnframework.environment import SystemEnvironment
from txnframework.errors import InvalidInput
from txnframework_console.guards import new_token
from txnframework_console.server import serve
from txnframework_console.terminal.keys import pressed_keys
from txnframework_console.terminal.loop import Screen, read_once
from txnframework_console.terminal.screen import FRAME_LINES

ROWS_MIN = 3
ONLY_IN_JSON = frozenset({"participants", "session"})
"""What the tables of ``top --once`` leave out, as lines are narrow."""


@click.command()
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:8470",
    show_default=True,
    help="Address to serve at. Port 0 chooses a free port.",
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Another name under which browsers reach the console, such as that of a proxy. May be repeated.",
)
@click.option(
    "--allow-changes",
    is_flag=True,
    help="Let pages abort, settle, split and move, with a token that is printed at the start.",
)
@config_option
@click.pass_obj
def console(
    loaded: LoadedPlugins, listen: str, hosts: tuple[str, ...], allow_changes: bool, config: Path | None
) -> None:
    """
    Serve a web page that shows topics, subscriptions and transactions.

    The pages are live: they show what hangs, who owns it, and what it holds back. They change nothing unless
    --allow-changes is given; then each change needs the token and a confirmation. With --allow-changes, the page of a
    subscription also shows its positions. Reading these settles the acknowledgments of transactions that have ended.
    The page works while the stores are down, and recovers with them. It has no encryption and no login: everyone who
    can reach the address can read it.
    """
    address = parse_address(listen, "--listen", "127.0.0.1:8470")
    if not is_local(address[0]):
        click.echo("Note: everyone who can reach this address can read the pages. They are not encrypted.", err=True)
    token = new_token() if allow_changes else None
    opening = client_opener(loaded, config)
    asyncio.run(serve(opening, address, hosts, token, click.echo))


@click.command()
@click.option("--once", is_flag=True, help="Print one reading of everything, and end.")
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="With --once: maximum number of topics, transactions and subscriptions.",
)
@output_option
@config_option
@click.pass_obj
def top(loaded: LoadedPlugins, once: bool, limit: int, output: str, config: Path | None) -> None:
    """
    Show topics, transactions and subscriptions in the terminal, live.

    Keys: 1, 2, 3 or Tab choose a view, s the order, / filters by name, n and p change the page, q quits. With --once
    --output json it prints one JSON document: the largest lags, the transactions that are open or not settled, and who
    owns them.
    """
    if not once:
        if output == "json":
            raise InvalidInput("--output json needs --once")
        if not terminal.console().is_terminal:
            raise InvalidInput("standard output is no terminal: add --once")
        asyncio.run(_live(client_opener(loaded, config)))
        return
    document = with_client(loaded, config, lambda client: read_once(client, SystemEnvironment(), limit))
    if output == "json":
        print_json(document)
        return
    for name in ("families", "topics", "transactions", "subscriptions"):
        rows = document[name]
        if rows and isinstance(rows, list):
            print_records([{key: value for key, value in row.items() if key not in ONLY_IN_JSON} for row in rows])


async def _live(open_client: OpenClient) -> None:
    shown = terminal.console()
    async with BackgroundClient(open_client, SystemEnvironment()) as connection:
        with Live(console=shown, screen=True, auto_refresh=False) as live:

            def draw(drawing: RenderableType) -> None:
                live.update(drawing, refresh=True)

            screen = Screen(connection, SystemEnvironment(), draw, lambda: max(ROWS_MIN, shown.height - FRAME_LINES))
            with pressed_keys(screen.keys):
                await screen.run()
