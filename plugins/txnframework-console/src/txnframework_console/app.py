"""The ASGI application: routes of pages, live views and actions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import aclosing, suppress
from typing import Any, Protocol
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from txnframework.cli.background_client import BackgroundClient
from txnframework.environment import Environment
from txnframework.errors import Conflict, InvalidInput, NotFound, OutcomeUnknown, TxnFrameworkError, Unavailable
from txnframework.runtime.tasks import start_task
from txnframework_console.actions import Action, action_of
from txnframework_console.catalog import Catalog
from txnframework_console.guards import Guard, is_token
from txnframework_console.pages import Pages
from txnframework_console.polls import Poll, Polls, Snapshot
from txnframework_console.remembered import read_exception
from txnframework_console.texts import clock, visible
from txnframework_console.views import subscriptions, topics
from txnframework_console.views.overview import OverviewQuery
from txnframework_console.views.processes import ProcessesQuery
from txnframework_console.views.source import Source
from txnframework_console.views.subscriptions import SubscriptionQuery, SubscriptionsQuery
from txnframework_console.views.topics import TopicQuery, TopicsQuery
from txnframework_console.views.transactions import TransactionQuery, TransactionsQuery

FIRST_PAINT_MS = 100
"""How long a page waits for its first reading. After that it is sent without one, and gets it as a live update."""
HEARTBEAT_MS = 15_000
STREAMS_MAX = 100
"""The number of browsers that can watch at a time."""
FORM_BYTES_MAX = 8_192
PAGE_NUMBER_MAX = 1_000_000
READING = Snapshot("", 0)
READ_ONLY = "This console is read-only; 'txnframework console --allow-changes' allows changes."

Fields = dict[str, str]


class Query(Protocol):
    """The query of a view; equal queries share their readings."""

    async def read(self, source: Source) -> object:
        """Return the view."""


def _sorted_by(fields: Fields, sorts: tuple[str, ...]) -> str:
    chosen = fields.get("sort", "")
    return chosen if chosen in sorts else sorts[0]


def _number(text: str) -> int:
    return min(int(text), PAGE_NUMBER_MAX) if text.isascii() and text.isdecimal() and len(text) < 10 else 1


QUERIES: dict[str, tuple[str, Callable[[Fields], Query]]] = {
    "/": ("Overview", lambda _: OverviewQuery()),
    "/topics": (
        "Topics",
        lambda given: TopicsQuery(
            given.get("q", "").strip(), _sorted_by(given, topics.SORTS), _number(given.get("page", ""))
        ),
    ),
    "/topic": ("Topic", lambda given: TopicQuery(given["name"])),
    "/transactions": ("Transactions", lambda given: TransactionsQuery(given.get("after", ""))),
    "/transaction": ("Transaction", lambda given: TransactionQuery(given["id"].strip())),
    "/subscriptions": (
        "Subscriptions",
        lambda given: SubscriptionsQuery(
            given.get("q", "").strip(), _sorted_by(given, subscriptions.SORTS), _number(given.get("page", ""))
        ),
    ),
    "/subscription": ("Subscription", lambda given: SubscriptionQuery(given["topic"], given["name"])),
    "/processes": ("Processes", lambda _: ProcessesQuery()),
}
"""The title of each page, and the query that its fields make."""


class ConsoleApp:
    """
    The console of one system.

    ``token`` allows changes; None: pages are read-only. ``hosts``: the values of the Host header that are accepted.
    """

    def __init__(
        self, connection: BackgroundClient, environment: Environment, hosts: frozenset[str], token: str | None = None
    ) -> None:
        self._connection = connection
        self._environment = environment
        self._token = token
        self._streams = 0
        self.pages = Pages(allows_changes=token is not None)
        """The templates of the pages."""
        self._catalog: Catalog | None = None
        self._catalog_of: object = None
        self.polls = Polls(self._read, environment)
        """The shared readings of the views."""
        routes = [Route(path, self._page(path), methods=["GET"]) for path in QUERIES]
        routes.append(Route("/act/{kind}", self._act, methods=["GET", "POST"]))
        live = [Route("/live" + path.rstrip("/"), self._live(path), methods=["GET"]) for path in QUERIES]
        static = Mount("/static", StaticFiles(packages=[("txnframework_console", "static")]))
        self.app = Starlette(
            routes=[*routes, *live, static],
            middleware=[Middleware(Guard, hosts=hosts)],
            exception_handlers={HTTPException: self._refused, RequestRefused: self._refused},
        )
        """The application."""

    async def warm(self) -> None:
        """Read the list of topics for the first page, if the stores answer."""
        with suppress(TxnFrameworkError):
            await self._source().catalog.layouts()

    async def close(self) -> None:
        """End all live views."""
        await self.polls.close()

    # -- views ----------------------------------------------------------------------------------------

    def _source(self) -> Source:
        client = self._connection.client()
        if self._catalog is None or self._catalog_of is not client:
            self._catalog, self._catalog_of = Catalog(client, self._environment), client
        return Source(client, self._catalog, self._environment.now_ms(), changes=self._token is not None)

    async def _read(self, query: Hashable) -> str:
        asked: Any = query
        return self.pages.view(await asked.read(self._source()))

    def _page(self, path: str) -> Callable[[Request], Any]:
        title = QUERIES[path][0]

        async def answer(request: Request) -> Response:
            poll = self.polls.of(_query(path, request))
            snapshot = await self._first(poll)
            live = f"/live{path.rstrip('/')}" + (f"?{request.url.query}" if request.url.query else "")
            html = self.pages.page(
                "page.html", title=title, path=path, live=live, content=self._content(snapshot), now=self._now()
            )
            return HTMLResponse(html, snapshot.status)

        return answer

    def _live(self, path: str) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            query = _query(path, request)
            if self._streams >= STREAMS_MAX:
                raise RequestRefused(503, f"{STREAMS_MAX} browsers are watching already.")
            # Counted before it begins: many requests may come before the first of them watches.
            self._streams += 1
            return LiveResponse(self._events(self.polls.of(query)), self._end_stream)

        return answer

    def _end_stream(self) -> None:
        self._streams -= 1

    async def _events(self, poll: Poll) -> AsyncIterator[str]:
        """Yield the snapshots of a view as server-sent events, and comments in between, which keep the way open."""
        yield "retry: 2000\n\n"
        async with aclosing(poll.watch()) as snapshots:
            pending = start_task(anext(snapshots, None))
            try:
                while True:
                    if not await self._within(pending, HEARTBEAT_MS):
                        yield ": still here\n\n"
                        continue
                    snapshot = pending.result()
                    if snapshot is None:
                        return
                    yield event_of(self._content(snapshot))
                    pending = start_task(anext(snapshots, None))
            finally:
                pending.cancel()
                await asyncio.gather(pending, return_exceptions=True)

    async def _first(self, poll: Poll) -> Snapshot:
        reading = start_task(poll.snapshot())
        reading.add_done_callback(read_exception)
        return reading.result() if await self._within(reading, FIRST_PAINT_MS) else READING

    async def _within(self, task: asyncio.Future[Any], wait_ms: int) -> bool:
        """Return whether a task is done within a time; it goes on if not."""
        timer = start_task(self._environment.sleep_until(self._environment.now_ms() + wait_ms))
        try:
            await asyncio.wait({task, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
        return task.done()

    def _content(self, snapshot: Snapshot) -> str:
        return self.pages.page("content.html", snapshot=snapshot)

    def _now(self) -> str:
        return clock(self._environment.now_ms())

    # -- actions --------------------------------------------------------------------------------------

    async def _act(self, request: Request) -> Response:
        if self._token is None:
            raise RequestRefused(403, READ_ONLY)
        form = await _form(request) if request.method == "POST" else {}
        try:
            action = action_of(request.path_params["kind"], dict(request.query_params), form)
        except KeyError as error:
            raise RequestRefused(404, "There is no such action.") from error
        if request.method != "POST":
            return self._confirmation(action, request)
        if not is_token(form.get("token", ""), self._token):
            return self._confirmation(action, request, form, 403, "This is not the token that the console printed.")
        try:
            source = self._source()
            said = await action.run(source.client)
            source.catalog.forget(action.changes)
        except TxnFrameworkError as error:
            return self._confirmation(action, request, form, status_of(error), visible(error))
        html = self.pages.page("done.html", title=action.title, path="", live="", now="", action=action, said=said)
        return HTMLResponse(html)

    def _confirmation(
        self, action: Action, request: Request, form: Fields | None = None, status: int = 200, problem: str = ""
    ) -> Response:
        html = self.pages.page(
            "confirm.html",
            title=action.title,
            path="",
            live="",
            now="",
            action=action,
            to=f"{request.url.path}?{request.url.query}",
            form=form or {},
            problem=problem,
        )
        return HTMLResponse(html, status)

    async def _refused(self, _: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 500)
        sentence = getattr(error, "detail", "") if isinstance(error, RequestRefused) else "There is no such page."
        html = self.pages.page(
            "page.html",
            title="Not possible",
            path="",
            live="",
            now="",
            content=self._content(Snapshot("", 0, sentence, status)),
        )
        return HTMLResponse(html, status, getattr(error, "headers", None))


class LiveResponse(StreamingResponse):
    """Server-sent events; ``ended`` is called at their end, also if they never began."""

    def __init__(self, events: AsyncIterator[str], ended: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


class RequestRefused(HTTPException):
    """A request that is answered by one sentence."""


def event_of(html: str) -> str:
    """Return HTML as a server-sent event; each of its lines is a line of data."""
    lines = "".join(f"data: {line}\n" for line in html.splitlines())
    return f"event: view\n{lines}\n"


def status_of(error: TxnFrameworkError) -> int:
    """Return the status code for the error of an action."""
    for kind, status in ((NotFound, 404), (InvalidInput, 400), (Conflict, 409), (Unavailable, 503)):
        if isinstance(error, kind):
            return status
    return 503 if isinstance(error, OutcomeUnknown) else 500


def _query(path: str, request: Request) -> Any:
    try:
        return QUERIES[path][1](dict(request.query_params))
    except KeyError as error:
        raise RequestRefused(404, "The address names nothing to show.") from error


async def _form(request: Request) -> Fields:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > FORM_BYTES_MAX:
            raise RequestRefused(413, "The form is too large.")
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
