"""One kazoo client, used for one connection."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, KazooException, SessionClosedRequireSaslError
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry

from txnframework_zookeeper._options import MetadataOptions, Servers, sasl_login, tls_context
from txnframework_zookeeper.connection._bridge import AsyncResult, Inbox, KazooBridge, ServerRole
from txnframework_zookeeper.connection._requests import NotSent

_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 1.0
_READ_PART = 2 / 3
"""kazoo leaves a server that is silent for this fraction of the session timeout."""


def _no_secrets(record: logging.LogRecord) -> bool:
    """Drop records below INFO: there kazoo logs logins, session passwords and records."""
    return record.levelno >= logging.INFO


_log = logging.getLogger("txnframework_zookeeper.kazoo")
_log.addFilter(_no_secrets)
# Without a handler, a program without a logging configuration would print each failed connection attempt to standard
# error.
_log.addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class Connected:
    """A server has started or resumed a session; requests made now are sent after the login."""

    session_id: int
    password: bytes = field(repr=False)
    timeout_ms: int
    role: ServerRole


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection is lost, or none was made and none will be; ``is_refused``: the login was refused."""

    is_refused: bool


class Connection:
    """
    One connection to a server: a kazoo client that tries all servers until one accepts it, and is then used only once.

    kazoo itself would reconnect. It keeps requests made without a connection and sends them over the next one, even in
    another session. A request made at the moment at which a session ends may never be answered. With one client for
    each connection, no request of a connection takes effect after its end.

    ``receive`` is called in the loop: first with Connected, if a server accepts the connection, and at the end with
    Disconnected.
    """

    def __init__(
        self,
        servers: Servers,
        options: MetadataOptions,
        resumed: tuple[int, bytes] | None,
        inbox: Inbox,
        receive: Callable[[Connected | Disconnected], None],
    ) -> None:
        session_timeout_s = options.session_ttl_ms / 1000
        self.bridge = KazooBridge(
            inbox, min(session_timeout_s, options.connect_timeout_ms / 1000), tls_context(options)
        )
        self.bridge.receive = self._take
        self.bridge.thread_ended = self._thread_ended
        self.silence_s = session_timeout_s * _READ_PART
        self.has_ended = False
        self._is_accepted = False
        self._asked_timeout_ms = options.session_ttl_ms
        self._inbox = inbox
        self._loop = asyncio.get_running_loop()
        self._receive = receive
        self._waiting: dict[AsyncResult, tuple[Callable[[Any], None], float]] = {}
        self._silence_timer: asyncio.TimerHandle | None = None
        self._heard_at = float("-inf")
        self.client = KazooClient(
            hosts=servers.hosts,
            timeout=session_timeout_s,
            client_id=resumed,
            handler=self.bridge,
            auth_data=_digest_login(servers, options),
            sasl_options=sasl_login(servers, options),
            connection_retry=KazooRetry(
                max_tries=-1, delay=_FIRST_WAIT_S, max_delay=_LONGEST_WAIT_S, sleep_func=self.bridge.sleep_func
            ),
            logger=_log,
        )
        self.client.add_listener(self._state_changed)
        self.client.start_async()

    @property
    def last_zxid(self) -> int:
        """The number of the last transaction whose effects this client has seen; 0: none."""
        return int(self.client.last_zxid)

    def set_session_timeout(self, timeout_ms: int) -> None:
        """Set the session timeout that the servers agreed to."""
        self.silence_s = timeout_ms / 1000 * _READ_PART

    def send(self, request: Any, take: Callable[[Any], None]) -> None:
        """
        Send a request after all earlier ones; ``take`` is called once, in the loop, with the reply or an error.

        Before a server has accepted the connection, nothing is sent: a caller may have found the connection before this
        one. kazoo would keep the request, and a server that has not accepted it cannot answer it, which is no silence.
        """
        if self.has_ended or not self._is_accepted:
            self._inbox.put(take, NotSent())
            return
        self._waiting[request.send(self.client)] = take, self._loop.time()
        if self._silence_timer is None:
            self._silence_timer = self._loop.call_later(self.silence_s, self._require_answers)

    def stop(self) -> asyncio.Future[None]:
        """
        End the session, if connected, on a separate thread; the future completes when kazoo has stopped.

        That may take as long as kazoo waits for the server; ``bridge.cut`` shortens it.
        """
        stopped = self._loop.create_future()
        threading.Thread(target=self._stop, args=(stopped,), daemon=True, name="txnframework-zookeeper stop").start()
        return stopped

    def end(self) -> None:
        """Fail all waiting requests as lost; nothing is sent any more."""
        self.has_ended = self.bridge.is_over = True
        if self._silence_timer is not None:
            self._silence_timer.cancel()
        waiting, self._waiting = self._waiting, {}
        for take, _ in waiting.values():
            take(ConnectionLoss())

    def _state_changed(self, state: str) -> None:
        """Handle a state of kazoo, on kazoo's thread, before kazoo continues."""
        if state == KazooState.CONNECTED:
            session_id, password = self.client.client_id
            timeout_ms = self.bridge.agreed_timeout_ms or self._asked_timeout_ms
            self._inbox.put(self._accepted, Connected(session_id, password, timeout_ms, self.bridge.role))
            return
        self.bridge.is_over = True
        # The end of kazoo's thread, and its reason, are reported by the bridge.
        if self.client.client_state != KeeperState.CLOSED:
            self._inbox.put(self._disconnected, Disconnected(self.client.client_state == KeeperState.AUTH_FAILED))

    def _accepted(self, connected: Connected) -> None:
        self._is_accepted = True
        self._receive(connected)

    def _thread_ended(self, error: BaseException | None) -> None:
        # The error of a server that requires a login; kazoo does not expect it.
        self._disconnected(Disconnected(isinstance(error, SessionClosedRequireSaslError)))

    def _disconnected(self, ended: Disconnected) -> None:
        if not self.has_ended:
            self.end()
            self._receive(ended)

    def _take(self, reply: AsyncResult) -> None:
        self._heard_at = self._loop.time()
        take, _ = self._waiting.pop(reply, (None, 0.0))
        if take is not None:
            error = reply.exception
            if error is not None and not isinstance(error, KazooException):
                # kazoo could not decode the reply: the request may have taken effect.
                error = ConnectionLoss(str(error))
            take(reply.value if error is None else error)

    def _require_answers(self) -> None:
        """Close the connection to a silent server; kazoo does not detect it while there is something to send."""
        # Replies may have arrived while the loop was blocked.
        self._inbox.deliver()
        self._silence_timer = None
        if self._waiting:
            _, asked_at = next(iter(self._waiting.values()))
            # A slow server that is still answering earlier requests is not silent.
            silent_since = max(asked_at, self._heard_at)
            if silent_since + self.silence_s <= self._loop.time():
                self.bridge.last_error = OSError(f"the server has not answered for {self.silence_s:.1f} s")
                self.bridge.cut()
            else:
                self._silence_timer = self._loop.call_at(silent_since + self.silence_s, self._require_answers)

    def _stop(self, stopped: asyncio.Future[None]) -> None:
        try:
            self.client.stop()
            self.client.close()
        except Exception:
            _log.info("kazoo did not stop", exc_info=True)
        self._inbox.put(_finish, stopped)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _digest_login(servers: Servers, options: MetadataOptions) -> list[tuple[str, str]]:
    is_used = servers.user and options.login == "digest"
    return [("digest", f"{servers.user}:{servers.password}")] if is_used else []
