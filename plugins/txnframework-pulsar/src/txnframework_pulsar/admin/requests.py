"""Requests and answers of the REST API: their JSON, and the status codes of errors."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from txnframework.errors import (
    Conflict,
    InvalidInput,
    InvalidName,
    NotFound,
    TopicExists,
    TopicInUse,
    TxnFrameworkError,
)
from txnframework_pulsar.faults import Refused
from txnframework_pulsar.ids import INT64_MAX, UINT64
from txnframework_pulsar.wire import messages_pb2 as pb

T = TypeVar("T")
BODY_BYTES_MAX = 64 * 1024
DONE = 204


class RequestedMessage(msgspec.Struct, rename="camel"):
    """A message id in a request; ``is_excluded``: begin after the message, not with it."""

    ledger_id: int = INT64_MAX
    entry_id: int = INT64_MAX
    batch_index: int = -1
    is_excluded: bool = False

    def to_wire(self) -> pb.MessageId:
        """Return the id as clients send it."""
        return pb.MessageId(
            ledger_id=self.ledger_id % UINT64, entry_id=self.entry_id % UINT64, batch_index=self.batch_index
        )


async def body_of(request: Request, kind: type[T], default: T) -> T:
    """
    Return the decoded body of a request; an empty one is ``default``.

    :raises InvalidInput: the body has another form, or is too large.
    """
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            raise InvalidInput(f"a request has at most {BODY_BYTES_MAX} bytes")
    if not body:
        return default
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the body of the request cannot be used: {error}") from error


def is_set(request: Request, name: str) -> bool:
    """Return whether a parameter of a request is ``true``."""
    return request.query_params.get(name, "").lower() == "true"


def answer(content: Any, status: int = 200) -> Response:
    """Return an answer with JSON."""
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def done() -> Response:
    """Return the answer to a request that changed something."""
    return Response(status_code=DONE)


# The first class that an error is an instance of decides.
_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (NotFound, 404),
    (TopicExists, 409),
    (TopicInUse, 412),
    (InvalidName, 412),
    (InvalidInput, 400),
    (Conflict, 409),
)
_REFUSED = {pb.AUTHENTICATION_ERROR: 401, pb.SERVICE_NOT_READY: 503, pb.CONSUMER_BUSY: 412}


def refusal(error: TxnFrameworkError | Refused) -> Response:
    """Return the answer to a request that failed."""
    if isinstance(error, Refused):
        status = _REFUSED.get(error.code, 400)
    else:
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), 503)
    return answer({"reason": str(error)}, status)
