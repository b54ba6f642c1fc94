"""Who may use the REST API: clients with a token, and no browsers."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Collection

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from txnframework_pulsar.access import Access
from txnframework_pulsar.admin.requests import answer, refusal
from txnframework_pulsar.faults import Refused

BEARER = b"bearer "
LOCALHOST = "localhost"


class Guard:
    """
    ASGI middleware that lets in requests with a valid token, and no browsers.

    A site that a person visits may ask for addresses of this machine. Browsers say so in headers that programs do not
    send. A browser that reads from a site whose name leads to this machine (DNS rebinding) sends none of them, but the
    name of the site. Without tokens, only addresses and ``hosts`` are accepted as the name of the gateway.

    Resources get the path as it was sent, so that ``%2F`` in a name divides nothing.
    """

    def __init__(self, app: ASGIApp, access: Access, hosts: Collection[str]) -> None:
        self._app = app
        self._access = access
        self._hosts = {LOCALHOST, *(one.strip("[]").lower() for one in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if refused := self._refusal(Request(scope)):
            await refused(scope, receive, send)
            return
        is_answered = False

        async def answering(message: Message) -> None:
            nonlocal is_answered
            is_answered = True
            await send(message)

        try:
            await self._app({**scope, "path": scope["raw_path"].decode("latin-1")}, receive, answering)
        except asyncio.CancelledError:
            # The gateway ends. A change that was begun is made or not.
            if is_answered:
                raise
            await answer({"reason": "the gateway ends"}, 503)(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        if "origin" in request.headers or request.headers.get("sec-fetch-site", "none") != "none":
            return answer({"reason": "the gateway is not used from other sites"}, 403)
        if not self._access.has_tokens:
            host = request.headers.get("host", LOCALHOST)
            if not self._is_own(host):
                reason = f"the gateway does not know the name {host}: use its address, --advertise or --tokens"
                return answer({"reason": reason}, 403)
            return None
        given = request.headers.get("authorization", "").encode("latin-1")
        try:
            self._access.user_with(given[len(BEARER) :] if given[: len(BEARER)].lower() == BEARER else given)
        except Refused as error:
            return refusal(error)
        return None

    def _is_own(self, host: str) -> bool:
        """Return whether ``NAME`` or ``NAME:PORT`` is an address, or a name of the gateway."""
        name = host.lower()
        if not name.endswith("]"):
            name = name.rpartition(":")[0] or name
        name = name.strip("[]")
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._hosts
        return True
