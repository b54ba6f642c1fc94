"""Requests to JetStream over a connection: store messages, read at the leader, read at any replica, purge."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import msgspec
from nats.aio.msg import Msg

from txnframework.errors import Unavailable
from txnframework_nats.connection._attempts import Attempts
from txnframework_nats.connection._connection import Message, NatsConnection
from txnframework_nats.connection._failures import (
    NO_MESSAGE,
    SUBJECT_IN_PROCESS,
    WRONG_LAST_SEQUENCE,
    ReplyLost,
    RequestRefused,
)

EXPECTED = "Nats-Expected-Last-Subject-Sequence"
LIFETIME = "Nats-TTL"

_HEADERS_BYTES = 4096
_PAUSE_S = 0.01
_PAUSE_S_MAX = 0.5


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """A message as it is stored: its number, its subject, the expectation that it was stored with (-1: none), data."""

    number: int
    subject: str
    expected: int
    data: bytes


class Draft(msgspec.Struct, frozen=True):
    """A message to store; ``expected``: the number of the last one of its subject, 0 without one, None: any."""

    subject: str
    data: bytes
    expected: int | None = None
    headers: tuple[tuple[str, str], ...] = ()


class Refusal(msgspec.Struct, frozen=True):
    """The server did not store a message: its error number and its words."""

    code: int
    reason: str

    @property
    def is_outrun(self) -> bool:
        """Whether the subject has changed, or is changing, since it was read."""
        return self.code in (WRONG_LAST_SEQUENCE, SUBJECT_IN_PROCESS)


class Unanswered(Exception):
    """A request got no reply in time: it may have been carried out, or may be later. ``sent`` False: it was not."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        self.sent = sent
        super().__init__(reason)


class Requests:
    """
    Requests of one store; reads are repeated for ``patience_s``.

    ``message_bytes``: the largest data of one message.
    """

    def __init__(self, connection: NatsConnection, patience_s: float, random_bits: Callable[[int], int]) -> None:
        self.connection = connection
        self.patience_s = patience_s
        self._random_bits = random_bits

    @property
    def message_bytes(self) -> int:
        """The largest data of one message, without its headers."""
        return self.connection.max_payload - _HEADERS_BYTES

    def attempts(self, first_s: float = _PAUSE_S, longest_s: float = _PAUSE_S_MAX) -> Attempts:
        """Return the attempts of a call that begins now."""
        return Attempts(self.patience_s, first_s, longest_s, self._random_bits)

    async def store(self, drafts: Sequence[Draft]) -> int | Refusal:
        """
        Store messages of one stream together, or none of them; return the number of the last one.

        :raises Unanswered: they may have been stored, unless ``sent`` is False.
        """
        messages = [Message(draft.subject, draft.data, _headers(draft)) for draft in drafts]
        try:
            if len(messages) == 1:
                return await self.connection.publish(messages[0])
            return await self.connection.publish_batch(uuid4().hex, messages)
        except RequestRefused as error:
            return Refusal(error.code, error.description)
        except ReplyLost as error:
            raise Unanswered(str(error), sent=True) from error
        except Unavailable as error:
            raise Unanswered(str(error), sent=False) from error

    async def next_at_leader(self, stream: str, subject: str, number: int) -> StoredMessage | None:
        """
        Return the first message of a subject with this number or a higher one, as the leader of the stream has it.

        :raises Unavailable: no leader answered in time.
        """
        return await self._get(stream, {"seq": number, "next_by_subj": subject})

    async def last_at_leader(self, stream: str, subject: str) -> StoredMessage | None:
        """
        Return the last message of a subject, as the leader of the stream has it.

        :raises Unavailable: no leader answered in time.
        """
        return await self._get(stream, {"last_by_subj": subject})

    async def some(self, stream: str, subject: str, number: int, items: int, size: int) -> list[StoredMessage]:
        """
        Return messages of a subject from this number on, in order, as any replica has them.

        Those stored last may be missing, or all; so the caller checks what it gets. At most ``items``, and about
        ``size`` bytes.
        """
        request = {"seq": number, "next_by_subj": subject, "batch": items, "max_bytes": size}
        try:
            found = await self.connection.request_many(f"$JS.API.DIRECT.GET.{stream}", json.dumps(request).encode())
        except Unavailable:
            return []
        return [_stored_directly(message) for message in found]

    async def purge(self, stream: str, subject: str, below: int | None) -> None:
        """
        Remove the messages of a subject with numbers below ``below``, or all; may be repeated.

        :raises Unavailable: no leader answered in time; they may be removed.
        """
        request: dict[str, Any] = {"filter": subject}
        if below is not None:
            request["seq"] = below
        await self.api(f"STREAM.PURGE.{stream}", request)

    async def api(self, name: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """
        Return the answer of the JetStream API, repeated until one comes; an error other than "not now" is returned.

        :raises Unavailable: none came in time; what was requested may be done.
        """
        attempts = self.attempts()
        while True:
            try:
                return await self.connection.api(name, request)
            except RequestRefused as error:
                return {"error": {"err_code": error.code, "description": error.description}}
            except (ReplyLost, Unavailable) as error:
                if attempts.are_over:
                    raise Unavailable(f"JetStream does not answer {name}: {error}") from error
            await attempts.pause()

    async def _get(self, stream: str, request: dict[str, Any]) -> StoredMessage | None:
        answer = await self.api(f"STREAM.MSG.GET.{stream}", request)
        error = answer.get("error")
        if error is not None:
            if error.get("err_code") == NO_MESSAGE:
                return None
            raise Unavailable(f"stream {stream} cannot be read: {error.get('description')}")
        message = answer["message"]
        headers = _parsed(base64.b64decode(message.get("hdrs", "")))
        return StoredMessage(
            message["seq"],
            message["subject"],
            int(headers.get(EXPECTED, -1)),
            base64.b64decode(message.get("data", "")),
        )


def _headers(draft: Draft) -> dict[str, str]:
    headers = dict(draft.headers)
    if draft.expected is not None:
        headers[EXPECTED] = str(draft.expected)
    return headers


def _stored_directly(message: Msg) -> StoredMessage:
    headers = message.headers or {}
    return StoredMessage(
        int(headers["Nats-Sequence"]), headers["Nats-Subject"], int(headers.get(EXPECTED, -1)), message.data
    )


def _parsed(headers: bytes) -> dict[str, str]:
    """Return headers by name; the first line is the version."""
    lines: Iterable[str] = headers.decode().split("\r\n")[1:]
    return {name: value.strip() for name, colon, value in (line.partition(":") for line in lines) if colon}
