"""Requests and answers of the REST API: their JSON, and the status codes of errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote, unquote_plus

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
INT32_MAX = 2**31 - 1
Number = Annotated[int, msgspec.Meta(ge=-INT64_MAX, le=INT64_MAX)]


class RequestedMessage(msgspec.Struct, rename="camel"):
    """A message id in a request; ``excluded``: begin after the message, not with it."""

    ledger_id: Number = INT64_MAX
    entry_id: Number = INT64_MAX
    batch_index: Annotated[int, msgspec.Meta(ge=-1, le=INT32_MAX)] = -1
    excluded: bool = False

    def to_wire(self) -> pb.MessageId:
        """Return the id as clients send it."""
        return pb.MessageId(
            ledger_id=self.ledger_id % UINT64, entry_id=self.entry_id % UINT64, batch_index=self.batch_index
        )


class RequestedPartitions(msgspec.Struct):
    """The number of partitions in a request; clients that have properties for the topic send this, others a number."""

    partitions: int


def word(request: Request, name: str) -> str:
    """
    Return a word of a request's path. Pulsar's clients write ``+`` for a space.

    :raises InvalidName: the word is not UTF-8.
    """
    return _unquoted(request.path_params[name], unquote_plus)


def subscription_in(request: Request) -> str:
    """
    Return the subscription of a request's path. Pulsar's client for Java escapes it twice.

    :raises InvalidName: it is not UTF-8.
    """
    return _unquoted(_unquoted(request.path_params["subscription"], unquote), unquote_plus)


def _unquoted(given: str, how: Callable[..., str]) -> str:
    try:
        return how(given, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidName(given, "it is not UTF-8") from error


def number(request: Request, name: str) -> int:
    """
    Return a number of a request's path.

    :raises InvalidInput: it is not a number, or has more than 64 bits.
    """
    try:
        return msgspec.convert(word(request, name), Number, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"a number in the path cannot be used: {error}") from error


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


def answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer with JSON."""
    return Response(msgspec.json.encode(content), status, headers, media_type="application/json")


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
_REFUSED = {
    pb.AUTHENTICATION_ERROR: 401,
    pb.SERVICE_NOT_READY: 503,
    pb.CONSUMER_BUSY: 412,
    pb.TRANSACTION_NOT_FOUND: 404,
}


def refusal(error: TxnFrameworkError | Refused) -> Response:
    """Return the answer to a request that failed."""
    if isinstance(error, Refused):
        status = _REFUSED.get(error.code, 400)
    else:
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), 503)
    return answer({"reason": str(error)}, status, {"www-authenticate": "Bearer"} if status == 401 else None)
