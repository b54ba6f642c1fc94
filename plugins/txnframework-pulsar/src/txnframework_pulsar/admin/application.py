"""The ASGI application: its resources, and its answers to errors."""

from __future__ import annotations

import logging
from collections.abc import Collection

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from txnframework.client import Client
from txnframework.errors import TxnFrameworkError
from txnframework_pulsar.access import Access
from txnframework_pulsar.admin.guard import Guard
from txnframework_pulsar.admin.requests import answer, refusal
from txnframework_pulsar.admin.subscriptions import SubscriptionResources
from txnframework_pulsar.admin.system import SystemResources
from txnframework_pulsar.admin.topics import TopicResources
from txnframework_pulsar.admin.transactions import TransactionResources
from txnframework_pulsar.faults import Refused
from txnframework_pulsar.topics import Topics
from txnframework_pulsar.turn import ServingTurn

_LOG = logging.getLogger(__name__)


def admin_application(
    client: Client, topics: Topics, turn: ServingTurn, access: Access, hosts: Collection[str]
) -> Starlette:
    """Return the application; ``hosts`` are the names of the gateway."""
    resources = (
        SystemResources(client, topics),
        TopicResources(client, topics),
        SubscriptionResources(client, topics),
        TransactionResources(client, turn),
    )
    return Starlette(
        routes=[route for one in resources for route in one.routes()],
        middleware=[Middleware(Guard, access=access, hosts=hosts)],
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
        reason = f"the gateway has no {request.method} {request.url.path}"
        return answer({"reason": reason}, error.status_code, error.headers)
    return answer({"reason": error.detail}, error.status_code, error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    _LOG.error("the request %s %s failed", request.method, request.url.path, exc_info=error)
    return answer({"reason": f"{type(error).__name__} in the gateway"}, 500)
