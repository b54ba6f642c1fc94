"""``txnframework server``: a server of a plugin for development, which runs as long as the command."""

from __future__ import annotations

import signal
import threading

import click

from txnframework.cli._groups import LoadedPlugins
from txnframework.testing.servers.embedded import running


@click.command()
@click.argument("name")
@click.pass_obj
def server(loaded: LoadedPlugins, name: str) -> None:
    """
    Run a server for development, until Ctrl-C.

    Prints the URL of an empty store, with a password for this server only, and runs until Ctrl-C or SIGTERM. Then the
    server is stopped, and its data is removed. Plugins provide the servers, and need their extra for testing.
    """
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    with running(loaded.registry, name) as started:
        click.echo(started.url)
        click.echo(f"{name} runs until Ctrl-C; then its data is removed.", err=True)
        stopped.wait()
