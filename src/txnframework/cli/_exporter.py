"""What answers scrapes over HTTP: ``/metrics`` and nothing else, also while the stores are away."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from txnframework.errors import InvalidInput

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

PATH = "/metrics"

Respond = Callable[..., Any]


class _Server(ThreadingMixIn, WSGIServer):
    """One thread for each scrape; none of them keeps the process alive."""

    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    """Logs no scrape."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that the base gives it
        """Say nothing."""


@contextmanager
def answering(registry: CollectorRegistry, host: str, port: int) -> Iterator[WSGIServer]:
    """
    Answer scrapes meanwhile, from threads of their own; gives the server, whose ``server_port`` is the port.

    Leaving waits for the thread of the server: leave from a thread that no scrape waits for.

    :raises InvalidInput: nothing can be served at this address.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        kind = type("_ServerOfFamily", (_Server,), {"address_family": family})
        server: WSGIServer = make_server(host, port, _application(registry), kind, _Quiet)
    except OSError as error:
        raise InvalidInput(f"--listen: nothing can be served at {host}:{port}: {error.strerror}") from error
    thread = threading.Thread(target=server.serve_forever, name="txnframework-metrics", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _application(registry: CollectorRegistry) -> Callable[[dict[str, Any], Respond], Iterable[bytes]]:
    from prometheus_client import make_wsgi_app

    metrics = make_wsgi_app(registry)

    def answer(environ: dict[str, Any], respond: Respond) -> Iterable[bytes]:
        if environ.get("PATH_INFO") == PATH:
            answered: Iterable[bytes] = metrics(environ, respond)
            return answered
        respond("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
        return [f"There is nothing here; the metrics are at {PATH}.\n".encode()]

    return answer
