"""The HTTP server of the REST API."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.types import ASGIApp

GRACE_S = 2
"""How long requests in progress may take when the gateway ends."""


class AdminServer(uvicorn.Server):
    """A server that leaves signals to the process."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Change nothing."""
        yield


@asynccontextmanager
async def serving_admin(app: ASGIApp, listening: socket.socket, tls: ssl.SSLContext | None) -> AsyncIterator[None]:
    """Serve an application on a socket that listens; the end closes the socket."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
        ssl_context_factory=None if tls is None else lambda *_: tls,
    )
    server = AdminServer(config)
    running = asyncio.ensure_future(server.serve([listening]))
    try:
        yield
    finally:
        server.should_exit = True
        await running
