"""``txnframework metrics``: metrics about the stores, printed once or served to Prometheus over HTTP."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click

from txnframework.cli._store_metrics import SCRAPE_TIMEOUT_S, StatusReader, StatusSnapshot, compressed, head_of
from txnframework.cli.addresses import is_local, parse_address
from txnframework.cli.background_client import FIRST_TRY_S, BackgroundClient, OpenClient
from txnframework.cli.output import print_json
from txnframework.cli.stores import LoadedPlugins, client_opener, config_option, with_client
from txnframework.cli.wsgi_server import Application, Respond, serving_in_threads
from txnframework.client import Client
from txnframework.environment import SystemEnvironment
from txnframework.errors import InvalidInput, MissingExtra, TxnFrameworkError

PATH = "/metrics"
TEXT = "text/plain; version=0.0.4; charset=utf-8"
SWITCH_INTERVAL_S = 0.001


@click.command()
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Serve scrapes at this address until stopped, instead of printing once. Port 0 chooses a free port.",
)
@click.option(
    "--wait-ms",
    type=click.IntRange(min=0),
    default=25,
    show_default=True,
    help="How long a scrape waits until the stores are read; then it gets what was read for an earlier scrape.",
)
@click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Output format: the text format of Prometheus, or JSON for other programs. Scrapes get text.",
)
@config_option
@click.pass_obj
def metrics(loaded: LoadedPlugins, listen: str | None, wait_ms: int, output: str, config: Path | None) -> None:
    """
    Export metrics about the stores for Prometheus.

    Reports open transactions and the age of the oldest, operations that are not settled yet, stored messages, messages
    that wait for an open transaction, and the backlog of each subscription. One exporter is enough for a system,
    because these metrics describe the stores. A process exports its own measurements with
    txnframework.open(..., metrics=...).
    """
    _require_exporter()
    if listen is None:
        text = with_client(loaded, config, _exposition)
        if output == "json":
            print_json(families_in(text))
        else:
            click.echo(text, nl=False)
        return
    if output == "json":
        raise InvalidInput("--listen serves the text format of Prometheus only; remove --output json")
    host, port = parse_address(listen, "--listen", "127.0.0.1:9464")
    if not is_local(host):
        click.echo("Note: everyone who can reach this address can read the metrics. They are not encrypted.", err=True)
    asyncio.run(_serve(client_opener(loaded, config), host, port, wait_ms))


class _Scrapes:
    """
    Answers scrapes from the threads of the HTTP server.

    A scrape does not depend on the loop, which may be busy with a reading: its thread waits for a new reading, and
    takes the last one if that takes too long. While the stores are unavailable, it reports only that. Standard error
    gets one line when an outage begins, and one when it ends.
    """

    def __init__(self, reader: StatusReader, loop: asyncio.AbstractEventLoop) -> None:
        self._reader = reader
        self._loop = loop
        self._lock = threading.Lock()
        self._is_up = True

    def answer(self) -> StatusSnapshot | None:
        """Return a new reading, or the last one; None: the stores are unavailable."""
        request = asyncio.run_coroutine_threadsafe(self._reader.reading(), self._loop)
        try:
            reading = self._result(request)
        except TxnFrameworkError as error:
            self._note(str(error))
            return None
        except TimeoutError:
            request.cancel()
            self._note(f"no answer within {SCRAPE_TIMEOUT_S} s")
            return None
        self._note(None)
        return reading

    def _result(self, request: Future[StatusSnapshot]) -> StatusSnapshot:
        try:
            return request.result(self._reader.wait_s)
        except TimeoutError:
            last = self._reader.last  # None during an outage, and before the first reading
            return request.result(SCRAPE_TIMEOUT_S + 1) if last is None else last

    def _note(self, reason: str | None) -> None:
        with self._lock:
            was_up, self._is_up = self._is_up, reason is None
        if was_up and reason is not None:
            click.echo(f"The stores are unavailable: {' '.join(reason.split())}", err=True)
        elif not was_up and reason is None:
            click.echo("The stores are available again.", err=True)


async def _exposition(client: Client) -> str:
    reading = await StatusReader(lambda: client, 0).reading()
    return b"".join((head_of(reading), reading.body.plain)).decode()


def families_in(text: str) -> list[dict[str, Any]]:
    """Return the metric families of an exposition, as they are printed for programs; pure."""
    from prometheus_client.parser import text_string_to_metric_families

    return [
        {
            "name": family.name,
            "help": family.documentation,
            "samples": [{"labels": sample.labels, "value": sample.value} for sample in family.samples],
        }
        for family in text_string_to_metric_families(text)
    ]


async def _serve(open_client: OpenClient, host: str, port: int, wait_ms: int) -> None:
    # The interpreter is passed on sooner, so that a scrape does not wait for the thread that reads the stores.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    async with BackgroundClient(open_client, SystemEnvironment()) as stores:
        await stores.tried(FIRST_TRY_S)
        async with serving(stores.client, host, port, wait_ms) as actual_port:
            click.echo(f"Serving http://{host}:{actual_port}{PATH}; stop with Ctrl-C.")
            await asyncio.get_running_loop().create_future()


@asynccontextmanager
async def serving(client: Callable[[], Client], host: str, port: int, wait_ms: int) -> AsyncIterator[int]:
    """
    Serve scrapes during the block; each waits for a reading of the stores for ``wait_ms`` at most.

    ``client`` returns the client of the stores, or raises the error while it cannot be opened.

    Yield the port.
    """
    reader = StatusReader(client, wait_ms / 1000)
    scrapes = _Scrapes(reader, asyncio.get_running_loop())
    running = serving_in_threads(_application(scrapes.answer), host, port, "--listen")
    actual_port = running.__enter__()
    try:
        yield actual_port
    finally:
        # Threads of the server may wait for this loop, to answer a scrape.
        await asyncio.to_thread(running.__exit__, None, None, None)
        await reader.close()


def _require_exporter() -> None:
    try:
        import prometheus_client  # noqa: F401 - imported here, so that the error comes before any work
    except ImportError as error:
        raise MissingExtra("txnframework metrics", "metrics", "prometheus_client") from error


def _application(reading: Callable[[], StatusSnapshot | None]) -> Application:
    def answer(environ: dict[str, Any], respond: Respond) -> Iterable[bytes]:
        if environ.get("PATH_INFO") != PATH:
            respond("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
            return [f"Not found; the metrics are at {PATH}.\n".encode()]
        if environ.get("REQUEST_METHOD") != "GET":
            respond("405 Method Not Allowed", [("Allow", "GET")])
            return [b""]
        found = reading()
        head, body = head_of(found), b""
        headers = [("Content-Type", TEXT)]
        if "gzip" in environ.get("HTTP_ACCEPT_ENCODING", ""):
            headers.append(("Content-Encoding", "gzip"))
            # Compressed texts one after the other are the compressed whole.
            head, body = compressed(head), b"" if found is None else found.body.compressed
        elif found is not None:
            body = found.body.plain
        respond("200 OK", headers)
        return [head + body]

    return answer
