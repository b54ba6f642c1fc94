"""A small HTTP server in threads, for what is answered without the event loop, such as metrics."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from txnframework.cli.addresses import listening_socket
from txnframework.cli.connections import WAIT_S, BoundedListener, Connections, within_file_limit

_LOG = logging.getLogger(__name__)

CONNECTIONS_MAX = 32
"""Each connection has a thread, and its headers may have megabytes."""

Respond = Callable[..., Any]
Application = Callable[[dict[str, Any], Respond], Iterable[bytes]]


@contextmanager
def serving_in_threads(
    application: Application, host: str, port: int, option: str, wait_s: float = WAIT_S
) -> Iterator[int]:
    """
    Serve an application in threads during the block. Yield the port.

    ``wait_s``: how long a client may take to send its request, and to read its answer.

    The end of the block waits for the server's thread: end it in a thread that no request waits for.

    :raises InvalidInput: the address cannot be used; the error names ``option``.
    """
    connections = Connections(within_file_limit(CONNECTIONS_MAX), wait_s)
    listening = BoundedListener(listening_socket(host, port, option), connections)
    with _Server(listening, connections, wait_s) as server:
        server.set_app(_logging_failures(application))
        thread = threading.Thread(target=server.serve_forever, name="txnframework-http", daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def _logging_failures(application: Application) -> Application:
    def answer(environ: dict[str, Any], respond: Respond) -> Iterable[bytes]:
        try:
            return application(environ, respond)
        except Exception:
            _LOG.exception("a request failed")
            raise

    return answer


class _Server(ThreadingMixIn, WSGIServer):
    """Answers each request in a daemon thread."""

    daemon_threads = True

    def __init__(self, listening: BoundedListener, connections: Connections, wait_s: float) -> None:
        host, port = listening.getsockname()[:2]
        super().__init__((host, port), type("_Request", (_Request,), {"timeout": wait_s}), bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.connections = connections
        self.server_name, self.server_port = host, port
        self.setup_environ()

    def service_actions(self) -> None:
        """Close the connections of slow clients, twice per second."""
        self.connections.close_overdue()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: the client left, or was too slow."""


class _Request(WSGIRequestHandler):
    """Logs nothing. ``timeout`` bounds each read and the whole answer."""

    server: _Server

    def parse_request(self) -> bool:
        """Read the headers; then the client waits for the server."""
        is_complete = super().parse_request()
        self.server.connections.answer(self.client_address)
        return is_complete

    def get_stderr(self) -> io.StringIO:
        """Return where a traceback is dropped that wsgiref writes for each client that does not read its answer."""
        return io.StringIO()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        """Do nothing."""
