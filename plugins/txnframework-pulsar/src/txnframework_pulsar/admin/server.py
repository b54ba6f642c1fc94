"""The HTTP server of the REST API."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.types import ASGIApp

from txnframework.cli.asgi_server import server_config
from txnframework.cli.connections import WAIT_S, BoundedListener, Connections, within_file_limit
from txnframework.runtime.tasks import start_task

CONNECTIONS_MAX = 256


class AdminServer(uvicorn.Server):
    """A server that leaves signals to the process."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Change nothing."""
        yield


@asynccontextmanager
async def serving_admin(
    app: ASGIApp, listening: socket.socket, tls: ssl.SSLContext | None, wait_s: float = WAIT_S
) -> AsyncIterator[None]:
    """Serve an application on a socket that listens; the end closes the socket."""
    connections = Connections(within_file_limit(CONNECTIONS_MAX), wait_s)
    server = AdminServer(server_config(app, connections, tls))
    running = start_task(server.serve([BoundedListener(listening, connections)]))
    try:
        yield
    finally:
        server.should_exit = True
        await running
