"""What protects the console: who may address it, what browsers may do with its pages, and the token of actions."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN_BYTES = 24
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Not no-referrer: browsers would then send 'Origin: null' with our own forms.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Headers of every answer."""


def new_token() -> str:
    """Return a random token for this run."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def is_token(given: str, token: str) -> bool:
    """Return whether the given text is the token; the time does not depend on how much of it is right."""
    return hmac.compare_digest(given.strip().encode(errors="surrogatepass"), token.encode())


def allowed_hosts(host: str, port: int, further: Iterable[str] = ()) -> frozenset[str]:
    """
    Return the values of the Host header that browsers may send.

    ``host`` and ``port``: where the console listens. ``further``: other names under which browsers reach it, on any
    port.
    """
    shown = f"[{host}]" if ":" in host else host
    names = {shown, *LOOPBACK} if shown in LOOPBACK else {shown}
    return frozenset(
        {f"{name}:{port}".lower() for name in names}
        | ({name.lower() for name in names} if port == 80 else set())
        | {name.lower() for name in further}
    )


def is_allowed(netloc: str, hosts: frozenset[str]) -> bool:
    """Return whether a host with its port is one of those that are allowed; a name without a port allows all ports."""
    lowered = netloc.lower()
    return lowered in hosts or lowered.rpartition(":")[0] in hosts


class Guard:
    """
    ASGI middleware that refuses requests under a foreign name, and what another site asks for, except links.

    A site that rebinds its own name to this address (DNS rebinding) sends that name as the Host. Each answer gets
    ``HEADERS``.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        reason = refusal(Request(scope), self._hosts)
        app = self._app if reason is None else PlainTextResponse(f"{reason}\n", 403)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *own]}
            await send(message)

        await app(scope, receive, send_with_headers)


def refusal(request: Request, hosts: frozenset[str]) -> str | None:
    """Return in one sentence why a request is refused; None: it is not."""
    named = request.headers.getlist("host")
    if len(named) != 1 or not is_allowed(named[0], hosts):
        return "This host name is not allowed: open the console at the address that it printed, or add --host NAME."
    is_foreign = request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
    if request.method in ("GET", "HEAD"):
        # A foreign page may link to the console, but not load parts of it: many live views would use up their number.
        is_link = request.headers.get("sec-fetch-dest") == "document"
        return "Another site asked for this, so it is not answered." if is_foreign and not is_link else None
    origin = request.headers.get("origin")
    if origin is not None and not _is_own(origin, hosts):
        return "Another site asked for this change, so nothing was changed."
    if is_foreign:
        return "Another site asked for this change, so nothing was changed."
    return None


def _is_own(origin: str, hosts: frozenset[str]) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and is_allowed(parts.netloc, hosts)
