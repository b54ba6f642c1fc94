"""A gateway of stores in memory, in a thread of its own, and the clients that use it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import select
import socket
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, ExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

import pulsar

import txnframework
import txnframework_dispatchers.plugin
import txnframework_legacy.plugin
import txnframework_memory.plugin
import txnframework_metadata.plugin
from txnframework import Client
from txnframework.client import LoopThread
from txnframework.model.names import TopicName
from txnframework.plugin import load_plugins
from txnframework_pulsar.limits import Limits
from txnframework_pulsar.server import ServerOptions, serving
from txnframework_pulsar.wire import messages_pb2 as pb
from txnframework_pulsar.wire.frames import SIZE_BYTES, Frame, command_frame, message_frame, parse_frame, size_of

T = TypeVar("T")
PATIENCE_MS = 60_000
PATIENCE_S = PATIENCE_MS // 1_000
NOTHING_MS = 300
"""How long a test waits for what must not come; a longer time only makes the test stricter."""
MESSAGE_BYTES_MAX = 1_048_576
REGISTRY = load_plugins(
    [one.plugin for one in (txnframework_memory, txnframework_metadata, txnframework_dispatchers, txnframework_legacy)]
)
_numbers = itertools.count()


class World:
    """Opens a client of the framework and a gateway on its stores; ``restart`` replaces the gateway."""

    def __init__(self, domain: str, **options: Any) -> None:
        self.domain = domain
        self.client: Client
        self.url = self.admin_url = ""
        self._limits = options.pop("limits", Limits(MESSAGE_BYTES_MAX))
        self.gateways: list[Client] = []
        """The clients of the gateways that were started."""
        self._loop = LoopThread()
        self.stores = options.pop("stores", f"memory://pulsar-{next(_numbers)}")
        self._quota = options.pop("backlog_quota", {})
        self._options = options
        self._exits = AsyncExitStack()
        self._gateway = AsyncExitStack()
        self._clients = ExitStack()
        self._others = ExitStack()

    def __enter__(self) -> Self:
        self.client = self.run(self._exits.enter_async_context(self._open()))
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clients.close()
        self._others.close()
        self.stop()
        self.run(self._exits.aclose())
        self._loop.stop()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop of the gateway; one that hangs fails."""

        async def bounded() -> T:
            async with asyncio.timeout(PATIENCE_S):
                return await work

        return self._loop.run(bounded())

    def start(self) -> None:
        """Start a gateway, with a client of its own, as another process would have it."""
        port = int(self.url.rpartition(":")[2]) if self.url else 0

        async def started() -> str:
            client = await self._gateway.enter_async_context(self._open())
            self.gateways.append(client)
            options = ServerOptions(port=port, domain=self.domain, **self._options)
            urls = await self._gateway.enter_async_context(serving(client, options, self._limits))
            self.admin_url = urls.admin or ""
            return urls.broker

        self.url = self.run(started())

    def stop(self) -> None:
        """End the gateway; its clients lose their connections."""
        self.run(self._gateway.aclose())
        self._gateway = AsyncExitStack()

    def add_gateway(self) -> tuple[str, Callable[[], None]]:
        """Start another gateway on the same stores; return its URL, and what stops it before the end of the test."""
        exits = AsyncExitStack()

        async def started() -> str:
            client = await exits.enter_async_context(self._open())
            options = ServerOptions(port=0, domain=self.domain, **self._options)
            return (await exits.enter_async_context(serving(client, options, self._limits))).broker

        url = self.run(started())
        self._others.callback(lambda: self.run(exits.aclose()))
        return url, lambda: self.run(exits.aclose())

    def restart(self) -> None:
        """End the gateway, and start another one at its address."""
        self.stop()
        self.start()

    def _open(self) -> Any:
        stores = {"url": self.stores}
        config = {"metadata": stores, "ledger": stores, "backlog_quota": self._quota}
        return txnframework.open(config, registry=REGISTRY)

    def topic(self, name: str) -> str:
        """Return the framework's name of a topic."""
        return f"{self.domain}://public/default/{name}"

    def migrate(self, name: str) -> None:
        """Migrate a persistent topic of the gateway; clients of the gateway keep its name."""
        before, after = (TopicName(domain, "public", "default", name) for domain in ("persistent", "topic"))
        self.run(self.client.topics.migrations.migrate(before, after))

    def connect(self, url: str = "", **options: Any) -> pulsar.Client:
        """Return a Pulsar client, which the end of the test closes."""
        logger = logging.getLogger("pulsar-client")
        logger.setLevel(logging.CRITICAL)
        client = pulsar.Client(url or self.url, operation_timeout_seconds=PATIENCE_S, logger=logger, **options)

        def close() -> None:
            with contextlib.suppress(pulsar.AlreadyClosed):
                client.close()

        self._clients.callback(close)
        return client

    def wire(self, url: str = "") -> Wire:
        """Return a connection on which a test writes bytes."""
        host, port = (url or self.url).rpartition("/")[2].split(":")
        return self._clients.enter_context(Wire(host, int(port)))


class Wire:
    """A connection whose other end is the gateway."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=PATIENCE_S)
        self._requests = itertools.count(1)
        self._messages: deque[Frame] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def write(self, content: bytes) -> None:
        """Write bytes; a gateway that has closed the connection is no error."""
        try:
            self._socket.sendall(content)
        except OSError:
            return

    def hold_little(self) -> None:
        """Let the system keep little of what was not read, so that it stays in the gateway."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)

    def shut(self) -> None:
        """Write no more."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def send(self, command: pb.Command) -> None:
        self.write(command_frame(command))

    def send_message(self, command: pb.Send, metadata: pb.MessageMetadata, payload: bytes) -> None:
        self.write(message_frame(pb.Command(send=command), metadata, payload))

    def read(self) -> Frame | None:
        """Return the next frame; None: the gateway has closed the connection."""
        prefix = self._exactly(SIZE_BYTES)
        if prefix is None:
            return None
        body = self._exactly(size_of(prefix, 2 * MESSAGE_BYTES_MAX))
        return None if body is None else parse_frame(body)

    def answer(self, name: str) -> Any:
        """Return the next command that has this field; messages that come before it are kept for ``message``."""
        while True:
            frame = self.read()
            assert frame is not None, "the gateway closed the connection"
            if frame.command.HasField(name):
                return getattr(frame.command, name)
            if frame.command.HasField("message"):
                self._messages.append(frame)

    def message(self) -> Frame:
        """Return the next message."""
        while not self._messages:
            frame = self.read()
            assert frame is not None, "the gateway closed the connection"
            if frame.command.HasField("message"):
                self._messages.append(frame)
        return self._messages.popleft()

    def is_silent(self, silent_ms: int) -> bool:
        """Return whether the gateway writes nothing for so long."""
        readable, _, _ = select.select([self._socket], [], [], silent_ms / 1_000)
        return not readable

    def greet(self) -> None:
        """Do what a client does first."""
        self.send(pb.Command(connect=pb.Connect(client_version="test", protocol_version=19)))
        self.answer("connected")

    def request(self, field: str, answer: str, **values: Any) -> Any:
        """Send a request, and return its answer."""
        command = pb.Command()
        getattr(command, field).SetInParent()
        for name, value in values.items():
            setattr(getattr(command, field), name, value)
        getattr(command, field).request_id = next(self._requests)
        self.send(command)
        return self.answer(answer)

    def _exactly(self, size: int) -> bytes | None:
        found = b""
        while len(found) < size:
            try:
                more = self._socket.recv(size - len(found))
            except ConnectionError:
                return None
            if not more:
                return None
            found += more
        return found
