"""One client of kazoo's, for one connection."""

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
from txnframework_zookeeper.connection._handler import Handler, Inbox, Reply, Role
from txnframework_zookeeper.connection._requests import NotSent

_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 1.0
_READ_PART = 2 / 3
"""kazoo leaves a server that is silent for this part of the session's timeout."""


def _no_secrets(record: logging.LogRecord) -> bool:
    """Let nothing through that is finer than INFO: there kazoo writes logins, sessions' passwords and records."""
    return record.levelno >= logging.INFO


_log = logging.getLogger("txnframework_zookeeper.kazoo")
_log.addFilter(_no_secrets)
# A program that has not set logging up would have each failed attempt to connect on its standard error.
_log.addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class Connected:
    """A server has begun or resumed a session; what is asked now is sent behind the login."""

    session_id: int
    password: bytes = field(repr=False)
    timeout_ms: int
    role: Role


@dataclass(frozen=True, slots=True)
class Ended:
    """The connection is lost, or none was made and none will be; ``is_refused``: for the login."""

    is_refused: bool


class Connection:
    """
    One connection to a server: a client of kazoo's that tries all servers until it has one, and is not used after it.

    kazoo would go on by itself. It keeps what is asked while there is no connection and sends it in the next one, in
    another session too; and what is asked at the moment at which a session ends may never be answered. Of what was
    asked of one connection it is known at its end that nothing more is done.

    ``receive`` is called in the loop with Connected, perhaps, and then with Ended.
    """

    def __init__(
        self,
        servers: Servers,
        options: MetadataOptions,
        resumed: tuple[int, bytes] | None,
        inbox: Inbox,
        receive: Callable[[Connected | Ended], None],
    ) -> None:
        session_timeout_s = options.session_timeout_ms / 1000
        self.handler = Handler(inbox, min(session_timeout_s, options.connect_timeout_ms / 1000), tls_context(options))
        self.handler.receive = self._take
        self.handler.thread_ended = self._thread_ended
        self.silence_s = session_timeout_s * _READ_PART
        self.has_ended = False
        self._asked_timeout_ms = options.session_timeout_ms
        self._inbox = inbox
        self._loop = asyncio.get_running_loop()
        self._receive = receive
        self._waiting: dict[Reply, tuple[Callable[[Any], None], float]] = {}
        self._silence: asyncio.TimerHandle | None = None
        self._heard_at = float("-inf")
        self.client = KazooClient(
            hosts=servers.hosts,
            timeout=session_timeout_s,
            client_id=resumed,
            handler=self.handler,
            auth_data=_digest_login(servers, options),
            sasl_options=sasl_login(servers, options),
            connection_retry=KazooRetry(
                max_tries=-1, delay=_FIRST_WAIT_S, max_delay=_LONGEST_WAIT_S, sleep_func=self.handler.sleep_func
            ),
            logger=_log,
        )
        self.client.add_listener(self._state_changed)
        self.client.start_async()

    @property
    def seen_zxid(self) -> int:
        """The number of a transaction that this client has seen the effects of; 0: of none."""
        return int(self.client.last_zxid)

    def agree_on(self, timeout_ms: int) -> None:
        """Take note of how long the servers keep the session."""
        self.silence_s = timeout_ms / 1000 * _READ_PART

    def send(self, request: Any, take: Callable[[Any], None]) -> None:
        """Ask, behind all that was asked before; ``take`` is called in the loop, once, with the answer or an error."""
        if self.has_ended:
            self._inbox.put(take, NotSent())
            return
        self._waiting[request.send(self.client)] = take, self._loop.time()
        if self._silence is None:
            self._silence = self._loop.call_later(self.silence_s, self._require_answers)

    def stop(self) -> asyncio.Future[None]:
        """
        End the session, if the connection still stands, on a thread of its own; the future is done at kazoo's end.

        It may take as long as kazoo waits for the server; ``handler.cut`` makes it shorter.
        """
        stopped = self._loop.create_future()
        threading.Thread(target=self._stop, args=(stopped,), daemon=True, name="txnframework-zookeeper stop").start()
        return stopped

    def end(self) -> None:
        """Tell all that wait that their requests are lost; nothing is sent any more."""
        self.has_ended = self.handler.is_over = True
        if self._silence is not None:
            self._silence.cancel()
        waiting, self._waiting = self._waiting, {}
        for take, _ in waiting.values():
            take(ConnectionLoss())

    def _state_changed(self, state: str) -> None:
        """Take note, on kazoo's thread, before it does anything else."""
        if state == KazooState.CONNECTED:
            session_id, password = self.client.client_id
            timeout_ms = self.handler.agreed_timeout_ms or self._asked_timeout_ms
            self._inbox.put(self._receive, Connected(session_id, password, timeout_ms, self.handler.role))
            return
        self.handler.is_over = True
        # Of the end of kazoo's thread the handler tells, and why.
        if self.client.client_state != KeeperState.CLOSED:
            self._inbox.put(self._end_with, Ended(self.client.client_state == KeeperState.AUTH_FAILED))

    def _thread_ended(self, error: BaseException | None) -> None:
        # So says a server that lets nobody in without a login; to kazoo it is unforeseen.
        self._end_with(Ended(isinstance(error, SessionClosedRequireSaslError)))

    def _end_with(self, ended: Ended) -> None:
        if not self.has_ended:
            self.end()
            self._receive(ended)

    def _take(self, reply: Reply) -> None:
        self._heard_at = self._loop.time()
        take, _ = self._waiting.pop(reply, (None, 0.0))
        if take is not None:
            error = reply.exception
            if error is not None and not isinstance(error, KazooException):
                # kazoo did not understand the answer: what was asked may have been done.
                error = ConnectionLoss(str(error))
            take(reply.value if error is None else error)

    def _require_answers(self) -> None:
        """Leave a server that is silent; kazoo does not notice it as long as there is something to send."""
        # Answers may have come while the loop was held up.
        self._inbox.deliver()
        self._silence = None
        if self._waiting:
            _, asked_at = next(iter(self._waiting.values()))
            # A server that is slow, with many requests before the oldest of these, is not silent.
            silent_since = max(asked_at, self._heard_at)
            if silent_since + self.silence_s <= self._loop.time():
                self.handler.last_error = OSError(f"the server has not answered for {self.silence_s:.1f} s")
                self.handler.cut()
            else:
                self._silence = self._loop.call_at(silent_since + self.silence_s, self._require_answers)

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
