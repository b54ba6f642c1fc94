"""Connects to the servers, and says in one sentence why they cannot be used."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import nats.errors
from nats.aio.client import Client

from txnframework.errors import InvalidInput, Unavailable
from txnframework.runtime.tasks import start_task
from txnframework_nats._options import ConnectionOptions, Servers, check, tls_context

_LOG = logging.getLogger(__name__)

OLDEST_SERVER = (2, 12, 11)
"""
2.12 has the first atomic batches. From 2.12.7 to 2.12.10, a restarted server may not find the last message of a
subject, and so judge conditions wrongly.
"""

_RECONNECT_WAIT_S = 0.05
_PING_S = 2
_CLOSING_S = 1.0
_UNANSWERED_PINGS_MAX = 2
_LINE_BYTES_MAX = 1 << 20
_SEED = re.compile(rb"\A\s*SU[A-Z2-7]{56}\s*\Z")
_SEED_IN_CREDENTIALS = re.compile(rb"BEGIN NATS USER JWT.*BEGIN USER NKEY SEED-+\s+SU[A-Z2-7]{56}\s", re.DOTALL)

Callback = Callable[[], Awaitable[None]]


class _Failures:
    """The errors of nats-py while it connects; a refusal of the login or of the certificate ends the attempt."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._last: BaseException | None = None
        self.refusal: asyncio.Future[InvalidInput] = asyncio.get_running_loop().create_future()

    async def report(self, error: Exception) -> None:
        """Remember an error of the client."""
        self._last = error
        _LOG.debug("%s: %s", self._servers.shown_url, _text(error))
        if not self.refusal.done() and (refusal := self._refusal(error)) is not None:
            self.refusal.set_result(refusal)

    def _refusal(self, error: Exception) -> InvalidInput | None:
        shown = self._servers.shown_url
        if isinstance(error, ssl.SSLError):
            reason = getattr(error, "verify_message", "") or error.reason or "the handshake failed"
            return InvalidInput(
                f"{shown}: TLS failed: {reason}; check tls, tls_ca, tls_certificate and the host's name"
            )
        text = str(error).lower()
        if isinstance(error, nats.errors.AuthorizationError) or "authorization" in text or "authentication" in text:
            return InvalidInput(f"{shown}: the servers refused the login")
        if "nkeys" in text or isinstance(error, nats.errors.InvalidUserCredentialsError):
            return InvalidInput(f"{shown}: the file of the login cannot be used")
        return None

    def unavailable(self) -> Unavailable:
        """Return the error of servers that were not reached in time."""
        why = f": {_text(self._last)}" if self._last is not None else ""
        return Unavailable(f"{self._servers.shown_url}: no server could be reached{why}")


def _text(error: BaseException) -> str:
    """Return what an error says, without what a client may have put into it: a login, a payload."""
    if isinstance(error, OSError | nats.errors.Error):
        return str(error) or type(error).__name__
    return type(error).__name__


async def connect(servers: Servers, options: ConnectionOptions, lost: Callback, restored: Callback) -> Client:
    """
    Connect; ``lost`` and ``restored`` are called whenever the connection is lost and made again.

    :raises InvalidInput: the login was refused, TLS failed, or the servers are too old or have no JetStream.
    :raises Unavailable: no server could be reached within ``connect_timeout_ms``.
    """
    check(servers, options)
    context = tls_context(options)
    login = _login(servers, options)
    failures = _Failures(servers)
    try:
        async with asyncio.timeout(options.connect_timeout_ms / 1000):
            await _check_offer(servers, context, options.tls_first, failures)
            return await _connect(
                failures,
                servers=[f"nats://{host}" for host in servers.hosts],
                name="txnframework",
                error_cb=failures.report,
                disconnected_cb=lost,
                reconnected_cb=restored,
                connect_timeout=max(1, options.connect_timeout_ms // 1000),
                reconnect_time_wait=_RECONNECT_WAIT_S,
                max_reconnect_attempts=-1,
                ping_interval=_PING_S,
                max_outstanding_pings=_UNANSWERED_PINGS_MAX,
                # Nothing is kept for a later connection: it could be sent long after its caller learned that it
                # failed.
                pending_size=0,
                tls=context,
                tls_handshake_first=options.tls_first,
                **login,
            )
    except TimeoutError:
        raise failures.unavailable() from None
    except nats.errors.Error as error:
        await failures.report(error)
        raise (failures.refusal.result() if failures.refusal.done() else failures.unavailable()) from error


async def _connect(failures: _Failures, **settings: Any) -> Client:
    """Return a connected client, unless the login or the certificate is refused first."""
    client = Client()
    connecting = start_task(client.connect(**settings))
    try:
        awaited: set[asyncio.Future[Any]] = {connecting, failures.refusal}
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        if not connecting.done():
            raise failures.refusal.result()
        connecting.result()
    finally:
        await _end_attempt(client, connecting)
    return client


async def _end_attempt(client: Client, connecting: asyncio.Task[None]) -> None:
    """Close the client if it did not connect; nats-py may ignore a cancellation, so it is repeated."""
    while not connecting.done():
        connecting.cancel()
        await asyncio.wait({connecting}, timeout=_CLOSING_S)
    if connecting.cancelled() or connecting.exception() is not None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING_S):
                await client.close()


def _login(servers: Servers, options: ConnectionOptions) -> dict[str, Any]:
    """
    Return the arguments of nats-py for the login.

    :raises InvalidInput: a file contains no seed.
    """
    if options.credentials_file:
        _check_seed(servers, options.credentials_file, _SEED_IN_CREDENTIALS)
        return {"user_credentials": options.credentials_file}
    if options.nkey_file:
        _check_seed(servers, options.nkey_file, _SEED)
        return {"nkeys_seed": options.nkey_file}
    if servers.user:
        return {"user": servers.user, "password": servers.password}
    return {"token": servers.token} if servers.token else {}


def _check_seed(servers: Servers, file: str, form: re.Pattern[bytes]) -> None:
    """Refuse a file without a seed; nats-py would fail while it connects, with parts of the file in the error."""
    if not form.search(Path(file).read_bytes()):
        raise InvalidInput(f"{servers.shown_url}: the login's file contains no seed of a user: {file}")


async def _check_offer(servers: Servers, context: ssl.SSLContext | None, first: bool, failures: _Failures) -> None:
    """
    Read what the first server that answers says, before a login is sent to it, and refuse servers that cannot be used.

    nats-py uses TLS exactly if the server asks for it, so a client that wants TLS must look first. An attacker who can
    change what the server says could still remove the wish for TLS. ``tls_first`` excludes this.
    """
    for host in servers.hosts:
        name, _, port = host.rpartition(":")
        name = name.strip("[]")
        try:
            reader, writer = await asyncio.open_connection(
                name, int(port), limit=_LINE_BYTES_MAX, ssl=context if first else None
            )
            try:
                line = await reader.readline()
                offer = _offer(servers.shown_url, host, line, bool(context) and not first)
                if context is not None and not first:
                    await writer.start_tls(context, server_hostname=name)
            finally:
                writer.close()
                with suppress(OSError, TimeoutError):
                    await writer.wait_closed()
        except OSError as error:
            await failures.report(error)
            if failures.refusal.done():
                raise failures.refusal.result() from error
            continue
        if not context and offer.get("tls_required"):
            raise InvalidInput(f"{servers.shown_url}: {host} requires TLS; set tls to true")
        check_version(servers.shown_url, str(offer.get("version", "")))
        return


def _offer(shown_url: str, host: str, line: bytes, wants_tls: bool) -> dict[str, Any]:
    """
    Return what a server says about itself in its first line.

    :raises InvalidInput: it is no NATS server, or has no TLS although that is wanted.
    """
    try:
        offer = json.loads(line.removeprefix(b"INFO "))
    except ValueError:
        offer = None
    if not line.startswith(b"INFO ") or not isinstance(offer, dict):
        raise InvalidInput(f"{shown_url}: {host} is not a NATS server")
    if wants_tls and not offer.get("tls_required"):
        raise InvalidInput(f"{shown_url}: {host} does not require TLS, so a client would not use it; require it there")
    return offer


def check_version(shown_url: str, version: str) -> None:
    """
    Refuse a server that has no atomic batches, or judges conditions wrongly.

    :raises InvalidInput: the server is too old.
    """
    numbers = version.split("-")[0].split(".")
    if not all(number.isdecimal() for number in numbers) or tuple(map(int, numbers)) < OLDEST_SERVER:
        oldest = ".".join(map(str, OLDEST_SERVER))
        raise InvalidInput(f"{shown_url}: the server has version {version or 'unknown'}, and {oldest} is needed")
