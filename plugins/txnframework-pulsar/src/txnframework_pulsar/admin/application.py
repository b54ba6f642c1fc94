"""The ASGI application: who may use it, its resources, and its answers to errors."""

from __future__ import annotations

import logging

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from txnframework.client import Client
from txnframework.errors import TxnFrameworkError
from txnframework_pulsar.access import Access
from txnframework_pulsar.admin.requests import answer, refusal
from txnframework_pulsar.admin.subscriptions import SubscriptionResources
from txnframework_pulsar.admin.system import SystemResources
from txnframework_pulsar.admin.topics import TopicResources
from txnframework_pulsar.admin.transactions import TransactionResources
from txnframework_pulsar.faults import Refused
from txnframework_pulsar.topics import Topics
from txnframework_pulsar.turn import ServingTurn

_LOG = logging.getLogger(__name__)

BEARER = "Bearer "


class Guard:
    """
    ASGI middleware that lets in requests with a valid token, and no browsers.

    A site that a person visits may ask for addresses of this machine. Browsers say so in headers that programs do not
    send.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused = self._refusal(Request(scope))
        await (self._app if refused is None else refused)(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        if "origin" in request.headers or request.headers.get("sec-fetch-site", "none") != "none":
            return answer({"reason": "the gateway is not used from other sites"}, 403)
        given = request.headers.get("authorization", "")
        try:
            self._access.user_with(given.removeprefix(BEARER).encode())
        except Refused as error:
            return refusal(error)
        return None


def admin_application(client: Client, topics: Topics, turn: ServingTurn, access: Access) -> Starlette:
    """Return the application."""
    resources = (
        SystemResources(client, topics),
        TopicResources(client, topics),
        SubscriptionResources(client, topics),
        TransactionResources(client, turn),
    )
    return Starlette(
        routes=[route for one in resources for route in one.routes()],
        middleware=[Middleware(Guard, access=access)],
        exception_handlers={
            TxnFrameworkError: _refused,
            Refused: _refused,
            HTTPException: _unknown,
            Exception: _failed,
        },
    )


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, TxnFrameworkError | Refused), error
    return refusal(error)


async def _unknown(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), error
    if error.status_code in (404, 405):
        return answer({"reason": f"the gateway has no {request.method} {request.url.path}"}, error.status_code)
    return answer({"reason": error.detail}, error.status_code)


async def _failed(request: Request, error: Exception) -> Response:
    _LOG.error("the request %s %s failed", request.method, request.url.path, exc_info=error)
    return answer({"reason": f"{type(error).__name__} in the gateway"}, 500)
