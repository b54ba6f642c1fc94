"""A client of kazoo's, as this package wants it: its thread, its login, its log."""

from __future__ import annotations

import logging
import ssl
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import Any

from kazoo.client import KazooClient
from kazoo.retry import KazooRetry

from txnframework.errors import ConfigurationError
from txnframework_zookeeper._options import MetadataOptions, Servers
from txnframework_zookeeper.connection._requests import acl_bytes
from txnframework_zookeeper.connection._thread import Connection, ThreadHandler

_ALL_PERMISSIONS = 31
_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 1.0


def _no_secrets(record: logging.LogRecord) -> bool:
    """Let nothing through that is finer than INFO: there kazoo writes logins, sessions' passwords and records."""
    return record.levelno >= logging.INFO


_log = logging.getLogger("txnframework_zookeeper.kazoo")
_log.addFilter(_no_secrets)
# A program that has not set logging up would have each failed attempt to connect on its standard error.
_log.addHandler(logging.NullHandler())


class Client(KazooClient):  # type: ignore[misc]
    """A client that becomes connected, or not, under the lock of its connection."""

    def __init__(self, lock: AbstractContextManager[Any], **terms: Any) -> None:
        self._lock = lock
        super().__init__(**terms)

    def _session_callback(self, state: str) -> None:
        with self._lock:
            super()._session_callback(state)


def new_client(
    servers: Servers, options: MetadataOptions, resumed: tuple[int, bytes] | None, lock: AbstractContextManager[Any]
) -> Any:
    """
    Return a client that is not started yet.

    ``resumed``: the number and the password of a session to go on with. ``lock``: see ``Connection``.
    """
    timeout_s = options.session_timeout_ms / 1000
    handler = ThreadHandler(min(timeout_s, options.connect_timeout_ms / 1000), _tls(options), lock)
    client = Client(
        lock,
        hosts=servers.hosts,
        timeout=timeout_s,
        client_id=resumed,
        handler=handler,
        auth_data=[("digest", f"{servers.user}:{servers.password}")] if _is_digest(servers, options) else None,
        connection_retry=KazooRetry(
            max_tries=-1, delay=_FIRST_WAIT_S, max_delay=_LONGEST_WAIT_S, sleep_func=handler.sleep_func
        ),
        logger=_log,
    )
    client._connection = Connection(client, client._conn_retry.copy(), lock, _sasl(servers, options))
    return client


def acl_of(servers: Servers, options: MetadataOptions) -> bytes:
    """Return the access control list of what is made: for the own login, or for everybody."""
    has_login = bool(servers.user) or options.login == "sasl-gssapi"
    is_private = has_login if options.is_private is None else options.is_private
    return acl_bytes([(_ALL_PERMISSIONS, "auth", "") if is_private else (_ALL_PERMISSIONS, "world", "anyone")])


def _is_digest(servers: Servers, options: MetadataOptions) -> bool:
    return bool(servers.user) and options.login == "digest"


def _sasl(servers: Servers, options: MetadataOptions) -> dict[str, str] | None:
    if options.login == "digest":
        return None
    if find_spec("puresasl") is None:
        raise ConfigurationError("metadata.options.login", "install txnframework-zookeeper[sasl] to log in by SASL")
    if options.login == "sasl-gssapi":
        kerberos = {"mechanism": "GSSAPI", "service": options.sasl_service}
        return kerberos | ({"principal": servers.user} if servers.user else {})
    return {"mechanism": "DIGEST-MD5", "username": servers.user, "password": servers.password}


def _tls(options: MetadataOptions) -> ssl.SSLContext | None:
    if not options.tls:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = options.tls_check_host
    context.verify_mode = ssl.CERT_REQUIRED if options.tls_verify else ssl.CERT_NONE
    name = "tls_ca"
    try:
        context.load_default_certs()
        if options.tls_ca:
            context.load_verify_locations(options.tls_ca)
        if options.tls_certificate:
            name = "tls_certificate"
            # The password that is never right: without one a terminal would be asked.
            context.load_cert_chain(options.tls_certificate, options.tls_key, password="")
    except OSError as error:
        raise ConfigurationError(f"metadata.options.{name}", f"it cannot be used: {error}") from error
    return context
