"""What all servers of ASGI applications have in common. Plugins that import this depend on uvicorn."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn

from txnframework.cli.connections import ACCEPTED_AT_ONCE, Connections

GRACE_S = 2
"""How long requests in progress may take when the server ends."""
CLOSE_OVERDUE_EVERY_S = 1

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


def server_config(
    application: Application, connections: Connections, tls: ssl.SSLContext | None = None
) -> uvicorn.Config:
    """
    Return the configuration of a server whose socket is a ``BoundedListener`` of the same connections.

    Clients cannot fill the log: uvicorn warns of each request that is not HTTP. h11 bounds the headers of a request.
    """

    async def close_overdue() -> None:
        connections.close_overdue()

    return uvicorn.Config(
        noting_waits(application, connections),
        http="h11",
        ws="none",
        proxy_headers=False,
        backlog=ACCEPTED_AT_ONCE,
        callback_notify=close_overdue,
        timeout_notify=CLOSE_OVERDUE_EVERY_S,
        log_level="error",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
        ssl_context_factory=None if tls is None else lambda *_: tls,
    )


def noting_waits(application: Application, connections: Connections) -> Application:
    """Return the application; ``connections`` learns when it waits for a client, and when it does not."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        peer = tuple(scope.get("client") or ())
        began_s = connections.answer(peer)
        is_complete = False

        async def receive_in_time() -> MutableMapping[str, Any]:
            nonlocal is_complete
            if is_complete:
                return await receive()  # the end of the connection, for which an application may wait while it answers
            with connections.waiting(peer, began_s):
                message = await receive()
            is_complete = not message.get("more_body", False)
            return message

        async def send_in_time(message: MutableMapping[str, Any]) -> None:
            with connections.waiting(peer):
                await send(message)

        try:
            await application(scope, receive_in_time, send_in_time)
        finally:
            connections.await_request(peer)

    return answer
