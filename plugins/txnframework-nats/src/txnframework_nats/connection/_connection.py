"""The connection of one store: requests, messages to streams, and subscriptions."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from txnframework.errors import Closed, InvalidInput, Unavailable
from txnframework.runtime.waits import is_done_within
from txnframework_nats._options import ConnectionOptions, Servers
from txnframework_nats.connection._client import connect
from txnframework_nats.connection._failures import NOT_ENABLED, ReplyLost, RequestRefused

BATCH_MESSAGES_MAX = 1_000
"""The most messages of one atomic batch."""

_NO_RESPONDERS = "503"
_RETRY_S = 0.05
_CLOSING_S = 2.0
_API = "$JS.API."
_UNAVAILABLE_NOW = (10008, 10009, 10024)
"""JetStream has no leader, or not yet: the request was not handled."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message to a stream."""

    subject: str
    payload: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class NatsConnection:
    """
    A connection to one of the servers; nats-py replaces a lost one.

    It belongs to the event loop and the process in which it was opened.
    """

    def __init__(self, servers: Servers, options: ConnectionOptions) -> None:
        self.servers = servers
        self.options = options
        self.shown_url = servers.shown_url
        self._process = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._client: Client | None = None
        self._is_connected = asyncio.Event()
        self._is_closed = False
        self._replies: dict[str, asyncio.Future[Msg]] = {}
        self._several: dict[str, asyncio.Queue[Msg | None]] = {}
        self._inbox = ""
        self.client_name = ""
        self._requests = 0
        self._observers: list[Callable[[bool], None]] = []

    @classmethod
    async def open(cls, servers: Servers, options: ConnectionOptions) -> NatsConnection:
        """
        Connect.

        :raises InvalidInput: the login was refused, TLS failed, or the servers are too old or have no JetStream.
        :raises Unavailable: no server could be reached within ``connect_timeout_ms``.
        """
        self = cls(servers, options)
        self._client = await connect(servers, options, self._lost, self._restored)
        self._is_connected.set()
        try:
            self._inbox = self._client.new_inbox()
            self.client_name = self._inbox.rpartition(".")[2]
            await self._client.subscribe(f"{self._inbox}.*", cb=self._replied)
            await self._check_jetstream()
        except BaseException:
            await self.close()
            raise
        return self

    @property
    def max_payload(self) -> int:
        """The most bytes of a message's payload and headers."""
        return self._require_client().max_payload

    @property
    def requests(self) -> int:
        """The number of requests that were begun."""
        return self._requests

    @property
    def under_way(self) -> int:
        """The number of requests without a reply."""
        return len(self._replies)

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection."""
        return self._is_connected.is_set() and not self._is_closed

    def observe(self, observer: Callable[[bool], None]) -> None:
        """Call ``observer`` with False after each loss of the connection, and with True after each restoration."""
        self._observers.append(observer)

    async def request(self, subject: str, payload: bytes = b"", headers: Mapping[str, str] | None = None) -> Msg:
        """
        Send a request; return its reply.

        :raises Unavailable: there was no connection, or no server received the request.
        :raises ReplyLost: the request was sent, and no reply arrived.
        """
        return await self._send((Message(subject, payload, headers or {}),))

    async def api(self, name: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """
        Send a request to JetStream's API; return the decoded reply.

        :raises Unavailable: no server handled the request.
        :raises RequestRefused: the reply is an error.
        :raises ReplyLost: the request was sent, and no reply arrived.
        """
        payload = b"" if body is None else json.dumps(body).encode()
        until = self._loop.time() + self.options.connect_timeout_ms / 1000
        while True:
            try:
                return _decoded(await self.request(_API + name, payload))
            except RequestRefused as error:
                if error.code not in _UNAVAILABLE_NOW:
                    raise
                if self._loop.time() > until:
                    raise Unavailable(f"{self.shown_url}: {error}") from error
            await asyncio.sleep(_RETRY_S)

    async def publish(self, message: Message) -> int:
        """
        Write one message to the stream of its subject; return its sequence number.

        :raises Unavailable: no server received the message.
        :raises RequestRefused: it was not stored.
        :raises ReplyLost: it may have been stored.
        """
        return int(_decoded(await self._send((message,)))["seq"])

    async def publish_batch(self, batch_id: str, messages: Sequence[Message]) -> int:
        """
        Write messages to one stream all or nothing; return the sequence number of the last.

        The messages have consecutive numbers. ``batch_id`` is never used again, also not for a repetition.

        :raises Unavailable: no server received the batch.
        :raises RequestRefused: nothing was stored.
        :raises ReplyLost: all or nothing was stored.
        """
        assert 0 < len(messages) <= BATCH_MESSAGES_MAX, len(messages)
        numbered = [
            Message(
                message.subject,
                message.payload,
                {"Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(number), **message.headers},
            )
            for number, message in enumerate(messages, 1)
        ]
        last = numbered[-1]
        numbered[-1] = Message(last.subject, last.payload, {**last.headers, "Nats-Batch-Commit": "1"})
        return int(_decoded(await self._send(numbered))["seq"])

    async def request_many(self, subject: str, payload: bytes) -> list[Msg]:
        """
        Send a request that has several replies, of which the last has a status; return those before it.

        If the last one does not arrive, those that arrived are returned: the caller cannot tell, and must not need to.

        :raises Unavailable: there was no connection.
        """
        client = await self._connected()
        self._requests += 1
        token = str(self._requests)
        replies = self._several[token] = asyncio.Queue()
        found: list[Msg] = []
        try:
            await client.publish(subject, payload, f"{self._inbox}.{token}")
            async with asyncio.timeout(self.options.request_timeout_ms / 1000):
                while (reply := await replies.get()) is not None and "Status" not in (reply.headers or {}):
                    found.append(reply)
        except TimeoutError:
            pass
        except nats.errors.Error as error:
            raise self._unavailable(error) from error
        finally:
            del self._several[token]
        return found

    async def subscribe(self, receive: Callable[[Msg], Awaitable[None]], subject: str | None = None) -> Subscription:
        """
        Subscribe to a subject; None: to one that no other client knows. Its name is the subscription's ``subject``.

        :raises Unavailable: there is no connection.
        """
        client = await self._connected()
        try:
            return await client.subscribe(subject or client.new_inbox(), cb=receive)
        except nats.errors.Error as error:
            raise self._unavailable(error) from error

    async def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription; one of a closed connection has ended."""
        with suppress(nats.errors.Error):
            await subscription.unsubscribe()

    async def send(self, subject: str, payload: bytes = b"") -> None:
        """Send a message that has no reply, if there is a connection."""
        if self._client is not None and self.is_connected:
            with suppress(nats.errors.Error):
                await self._client.publish(subject, payload)

    async def close(self) -> None:
        """Close the connection; requests under way lose their replies. May be repeated."""
        if self._is_closed:
            return
        self._is_closed = True
        self._fail_requests()
        if self._client is not None:
            # nats-py may raise the error of a connection that is broken, or wait for it.
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(_CLOSING_S):
                    await self._client.close()

    def require_open(self) -> None:
        """Raise Closed if this connection was closed, or belongs to another process or event loop."""
        if self._is_closed:
            raise Closed(f"{self.shown_url}: the connection was closed")
        if self._process != os.getpid() or self._loop is not asyncio.get_running_loop():
            raise Closed(f"{self.shown_url}: the connection belongs to another process or event loop; open it again")

    async def _check_jetstream(self) -> None:
        until = self._loop.time() + self.options.connect_timeout_ms / 1000
        while True:
            try:
                await self.api("INFO")
                return
            except RequestRefused as error:
                if error.code in NOT_ENABLED:
                    raise InvalidInput(f"{self.shown_url}: the servers have no JetStream for this login") from error
                raise Unavailable(f"{self.shown_url}: {error}") from error
            except ReplyLost as error:
                if self._loop.time() > until:
                    raise Unavailable(f"{self.shown_url}: JetStream does not answer") from error
            except Unavailable as error:
                if isinstance(error.__cause__, nats.errors.NoRespondersError):
                    raise InvalidInput(f"{self.shown_url}: the servers have no JetStream for this login") from error
                raise
            await asyncio.sleep(_RETRY_S)

    async def _send(self, messages: Sequence[Message]) -> Msg:
        """Send messages one after another, the last one as a request, and return its reply."""
        until = self._loop.time() + self.options.connect_timeout_ms / 1000
        while True:
            reply = await self._exchange(messages)
            if (reply.headers or {}).get("Status") != _NO_RESPONDERS:
                return reply
            # No server received the last message. The stream has no leader, or there is no JetStream.
            if self._loop.time() > until:
                cause = nats.errors.NoRespondersError()
                raise Unavailable(f"{self.shown_url}: no server handles {messages[-1].subject}") from cause
            await asyncio.sleep(_RETRY_S)

    async def _exchange(self, messages: Sequence[Message]) -> Msg:
        client = await self._connected()
        self._requests += 1
        token = str(self._requests)
        reply: asyncio.Future[Msg] = self._loop.create_future()
        self._replies[token] = reply
        sent = 0
        try:
            for message in messages:
                is_last = message is messages[-1]
                to = f"{self._inbox}.{token}" if is_last else ""
                await client.publish(message.subject, message.payload, to, dict(message.headers) or None)
                sent += 1
            return await self._received(reply)
        except nats.errors.MaxPayloadError as error:
            raise InvalidInput(
                f"{self.shown_url}: a message is larger than the servers accept; set max_payload higher there"
            ) from error
        except nats.errors.Error as error:
            # The last message was not sent, so no part of a batch is ever stored.
            raise self._unavailable(error) from error
        except TimeoutError as error:
            raise ReplyLost(f"{self.shown_url}: no reply in {self.options.request_timeout_ms} ms") from error
        finally:
            self._replies.pop(token, None)
            if reply.done() and not reply.cancelled():
                reply.exception()

    async def _received(self, reply: asyncio.Future[Msg]) -> Msg:
        """
        Return a reply.

        :raises TimeoutError: there was none in ``request_timeout_ms`` of a running loop.
        """
        if not await is_done_within(reply, self.options.request_timeout_ms / 1000):
            raise TimeoutError
        return reply.result()

    async def _connected(self) -> Client:
        """Return the client, once it is connected."""
        self.require_open()
        if not self._is_connected.is_set():
            try:
                async with asyncio.timeout(self.options.connect_timeout_ms / 1000):
                    await self._is_connected.wait()
            except TimeoutError:
                raise Unavailable(f"{self.shown_url}: no server could be reached") from None
            self.require_open()
        return self._require_client()

    def _require_client(self) -> Client:
        assert self._client is not None
        return self._client

    def _unavailable(self, error: Exception) -> Unavailable | Closed:
        if self._is_closed:
            return Closed(f"{self.shown_url}: the connection was closed")
        return Unavailable(f"{self.shown_url}: the connection was lost: {error}")

    async def _replied(self, reply: Msg) -> None:
        token = reply.subject.rpartition(".")[2]
        if (several := self._several.get(token)) is not None:
            several.put_nowait(reply)
        future = self._replies.pop(token, None)
        if future is not None and not future.done():
            future.set_result(reply)

    async def _lost(self) -> None:
        self._is_connected.clear()
        self._fail_requests()
        for observer in tuple(self._observers):
            observer(False)

    async def _restored(self) -> None:
        self._is_connected.set()
        for observer in tuple(self._observers):
            observer(True)

    def _fail_requests(self) -> None:
        replies, self._replies = self._replies, {}
        for several in self._several.values():
            several.put_nowait(None)
        for reply in replies.values():
            if not reply.done():
                reply.set_exception(ReplyLost(f"{self.shown_url}: the connection was lost"))


def _decoded(reply: Msg) -> dict[str, Any]:
    """
    Return the content of a reply.

    :raises RequestRefused: it is an error.
    """
    try:
        found = json.loads(reply.data)
    except ValueError as error:
        raise ReplyLost("a reply cannot be decoded") from error
    if not isinstance(found, dict):
        raise ReplyLost("a reply cannot be decoded")
    error_ = found.get("error")
    if error_ is not None:
        raise RequestRefused(int(error_.get("err_code", 0)), str(error_.get("description", "")))
    return found
