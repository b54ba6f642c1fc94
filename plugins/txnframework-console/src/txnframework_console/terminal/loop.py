"""The loops of ``txnframework top``: one that reads the stores, and one that draws after each key and each reading."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rich.console import RenderableType

from txnframework.cli.background_client import BackgroundClient
from txnframework.client import Client
from txnframework.environment import Environment
from txnframework.errors import NotFound, TxnFrameworkError
from txnframework.runtime.tasks import start_task
from txnframework_console.catalog import Catalog
from txnframework_console.terminal.screen import ScreenView, document_of, drawn
from txnframework_console.terminal.state import ScreenQuery, ScreenState, after_key
from txnframework_console.texts import visible
from txnframework_console.views.source import Source
from txnframework_console.views.subscriptions import SubscriptionsQuery
from txnframework_console.views.topics import TopicsQuery
from txnframework_console.views.transactions import TransactionsQuery, TransactionsView

POLL_MS = 2_000
LOAD_MAX = 4
"""After a reading the stores rest for at least this many times as long as the reading took."""


class Screen:
    """
    The live screen: ``draw`` gets each new drawing, ``rows`` says how many rows fit.

    Keys come from the queue ``keys``. A key is shown at once, and wakes the reading of the new view.
    """

    def __init__(
        self,
        connection: BackgroundClient,
        environment: Environment,
        draw: Callable[[RenderableType], None],
        rows: Callable[[], int],
    ) -> None:
        self.keys: asyncio.Queue[str] = asyncio.Queue()
        self._connection = connection
        self._environment = environment
        self._draw = draw
        self._rows = rows
        self._state = ScreenState()
        self._view: ScreenView | None = None
        self._view_of: ScreenQuery | None = None
        self._problem = ""
        self._catalog: tuple[Client, Catalog] | None = None
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Run until the key ``q``."""
        reading = start_task(self._read_again())
        try:
            self._show()
            while not self._state.is_over:
                key = start_task(self.keys.get())
                try:
                    await asyncio.wait({key, reading}, return_when=asyncio.FIRST_COMPLETED)
                    if not key.done():
                        await reading  # it ends only by an error
                finally:
                    key.cancel()
                self._press(key.result())
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    def _press(self, key: str) -> None:
        last = self._view.next_after if isinstance(self._view, TransactionsView) else None
        self._state = after_key(self._state, key, last)
        self._wake.set()
        self._show()

    async def _read_again(self) -> None:
        while True:
            self._wake.clear()
            began_ms = self._environment.now_ms()
            await self._read()
            self._show()
            took_ms = self._environment.now_ms() - began_ms
            pause = start_task(
                self._environment.sleep_until(self._environment.now_ms() + max(POLL_MS, LOAD_MAX * took_ms))
            )
            woken = start_task(self._wake.wait())
            try:
                await asyncio.wait({pause, woken}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                pause.cancel()
                woken.cancel()

    async def _read(self) -> None:
        query = self._state.query(self._rows())
        try:
            client = self._connection.client()
            if self._catalog is None or self._catalog[0] is not client:
                self._catalog = client, Catalog(client, self._environment)
            view = await query.read(Source(client, self._catalog[1], self._environment.now_ms()))
        except NotFound:
            self._state = ScreenState(self._state.view, self._state.sort, self._state.text)  # back to the first page
            self._wake.set()
        except TxnFrameworkError as error:
            self._problem = f"The stores do not answer: {visible(error)}"
        else:
            self._view, self._view_of, self._problem = view, query, ""

    def _show(self) -> None:
        shown = self._view if type(self._view_of) is type(self._state.query(1)) else None
        self._draw(drawn(self._state, shown, self._problem, self._environment.now_ms()))


async def read_once(client: Client, environment: Environment, rows: int) -> dict[str, object]:
    """Return the document of ``--once``: topics and subscriptions with the largest lags, after reading every topic."""
    catalog, now_ms = Catalog(client, environment), environment.now_ms()
    source = Source(client, catalog, now_ms)
    while await catalog.survey(1_000):
        pass
    return document_of(
        await TopicsQuery(sort="lag", rows=rows).read(source),
        await TransactionsQuery(rows=rows).read(source),
        await SubscriptionsQuery(rows=rows).read(source),
        now_ms,
    )
