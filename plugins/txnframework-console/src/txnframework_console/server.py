"""The HTTP server of the console: where it listens, and how it ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvicorn

from txnframework.cli.addresses import listening_socket, shown_address
from txnframework.cli.asgi_server import server_config
from txnframework.cli.background_client import FIRST_TRY_S, BackgroundClient, OpenClient
from txnframework.cli.connections import BoundedListener, Connections, within_file_limit
from txnframework.environment import SystemEnvironment
from txnframework.runtime.tasks import start_task
from txnframework_console.app import ConsoleApp
from txnframework_console.guards import allowed_hosts

CONNECTIONS_MAX = 512
"""The most connections of browsers; each live view has one."""


class ConsoleServer(uvicorn.Server):
    """A server that ends the live views when it is stopped; browsers would keep it otherwise."""

    def __init__(self, config: uvicorn.Config, console: ConsoleApp) -> None:
        super().__init__(config)
        self._console = console

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop serving."""
        await self._console.close()
        await super().shutdown(sockets)


async def serve(
    open_client: OpenClient,
    address: tuple[str, int],
    further_hosts: tuple[str, ...],
    token: str | None,
    say: Callable[[str], None],
) -> None:
    """
    Serve the console until it is interrupted; ``say`` gets what is printed.

    :raises TxnFrameworkError: the stores cannot be opened, for another reason than that they do not answer.
    """
    environment = SystemEnvironment()
    with listening_socket(*address, "--listen") as listening:
        host, port = address[0], listening.getsockname()[1]
        hosts = allowed_hosts(host, port, further_hosts)
        async with BackgroundClient(open_client, environment) as connection:
            await connection.tried(FIRST_TRY_S)
            console = ConsoleApp(connection, environment, hosts, token)
            console.pages.compile()
            connections = Connections(within_file_limit(CONNECTIONS_MAX))
            config = server_config(console.app, connections)
            say(f"Console: http://{shown_address(host, listening)}/ (stop with Ctrl-C)")
            if token is not None:
                say(f"Token for changes: {token}")
            warming = start_task(console.warm())
            try:
                await ConsoleServer(config, console).serve([BoundedListener(listening, connections)])
            finally:
                warming.cancel()
                await asyncio.gather(warming, return_exceptions=True)
