"""The location of the servers, and the options of the stores with their defaults."""

from __future__ import annotations

import logging
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from txnframework.config import is_own_machine, parse_cluster_url
from txnframework.errors import ConfigurationError
from txnframework.plugin import SESSION_TTL_MS, SessionTtlMs

_LOG = logging.getLogger(__name__)

PASSWORD_VARIABLE = "TXN_NATS_PASSWORD"  # noqa: S105
"""The environment variable with the password of a user that the URL names without a password."""

TOKEN_VARIABLE = "TXN_NATS_TOKEN"  # noqa: S105
"""The environment variable with the token of servers that require one; used if the URL names no user."""

DEFAULT_PREFIX = "txnframework"
REPLICAS_OF_A_CLUSTER = 3

_DEFAULT_PORT = 4222
_SHAPE = "nats://host:port,host:port/prefix"
# A stream's name begins with the prefix, and so do its subjects.
_PREFIX = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ConnectionOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of a connection to NATS servers, and of the streams."""

    connect_timeout_ms: Annotated[
        int,
        Meta(
            ge=1,
            description="How long opening, and an operation without a connection, waits before it raises Unavailable.",
        ),
    ] = 15_000
    request_timeout_ms: Annotated[
        int,
        Meta(ge=1, description="How long a request waits for its reply before the reply counts as lost."),
    ] = 5_000
    replicas: Annotated[
        int | None,
        Meta(
            ge=1,
            le=5,
            description="How many servers keep each message; by default 3 if the URL names at least three servers,"
            " otherwise 1. It is used when a stream is created.",
        ),
    ] = None
    sync_always: Annotated[
        bool,
        Meta(
            description="The servers have sync_interval: always. A client cannot read this setting. Without it, fewer"
            " than 3 replicas may lose what they confirmed when a machine loses power: a metadata store does not count"
            " as durable then, and both stores log a warning.",
        ),
    ] = False
    credentials_file: Annotated[
        str | None, Meta(description="File with a user's JWT and seed (.creds); needs txnframework-nats[nkeys].")
    ] = None
    nkey_file: Annotated[
        str | None, Meta(description="File with the seed of a user's nkey; needs txnframework-nats[nkeys].")
    ] = None
    tls: Annotated[bool, Meta(description="Connect with TLS.")] = False
    tls_first: Annotated[
        bool,
        Meta(
            description="Begin each connection with TLS, before the server says anything; the servers must have"
            " handshake_first."
        ),
    ] = False
    require_tls: Annotated[bool, Meta(description="Refuse servers on other machines unless tls is true.")] = False
    tls_ca: Annotated[
        str | None, Meta(description="File with certificates to trust in addition to those of the system.")
    ] = None
    tls_certificate: Annotated[
        str | None, Meta(description="File with the client's certificate, if the servers require one.")
    ] = None
    tls_key: Annotated[str | None, Meta(description="File with the key of the client's certificate.")] = None


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers, the prefix of the store's streams and subjects, and the login; ``shown_url`` may be printed."""

    hosts: tuple[str, ...]
    prefix: str
    shown_url: str
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)


def locate(url: str, variables: Mapping[str, str] = os.environ) -> Servers:
    """
    Return the servers, prefix and login that a URL names.

    :raises ConfigurationError: the URL names no servers, has an invalid prefix, or has text after the prefix.
    """
    found = parse_cluster_url(url, "NATS", _SHAPE, _DEFAULT_PORT)
    prefix = found.path.strip("/") or DEFAULT_PREFIX
    if not _PREFIX.fullmatch(prefix):
        raise ConfigurationError(
            "",
            f"{found.shown_url} has a prefix that is not 1 to 64 letters, digits, hyphens and underscores;"
            f" write {_SHAPE}",
        )
    return Servers(
        hosts=found.hosts,
        prefix=prefix,
        shown_url=found.shown_url,
        user=found.user,
        password=found.password or (variables.get(PASSWORD_VARIABLE, "") if found.user else ""),
        token="" if found.user else variables.get(TOKEN_VARIABLE, ""),
    )


def replicas_of(servers: Servers, options: ConnectionOptions) -> int:
    """Return how many servers keep each message of a new stream."""
    if options.replicas is not None:
        return options.replicas
    return REPLICAS_OF_A_CLUSTER if len(servers.hosts) >= REPLICAS_OF_A_CLUSTER else 1


def check(servers: Servers, options: ConnectionOptions) -> None:
    """
    Refuse options that contradict each other or the URL, and files that do not exist.

    :raises ConfigurationError: the first such option or file.
    """
    if servers.user and not servers.password:
        raise ConfigurationError("", f"{servers.shown_url} names a user without a password; set {PASSWORD_VARIABLE}")
    logins = [name for name in ("credentials_file", "nkey_file") if getattr(options, name)]
    if len(logins) + bool(servers.user) > 1:
        raise ConfigurationError("", f"{servers.shown_url}: name one login: a user, credentials_file or nkey_file")
    if logins and find_spec("nkeys") is None:
        raise ConfigurationError(f"options.{logins[0]}", "install txnframework-nats[nkeys] to log in by it")
    if bool(options.tls_certificate) != bool(options.tls_key):
        raise ConfigurationError("options.tls_key", "name both tls_certificate and tls_key, or neither")
    for name in ("tls_ca", "tls_certificate", "tls_key", "credentials_file", "nkey_file"):
        value: str | None = getattr(options, name)
        if value and name.startswith("tls_") and not options.tls:
            raise ConfigurationError(f"options.{name}", "set tls to true to use it")
        if value and not Path(value).is_file():
            raise ConfigurationError(f"options.{name}", f"file not found: {value}")
    if options.tls_first and not options.tls:
        raise ConfigurationError("options.tls_first", "set tls to true to use it")
    _check_secrecy(servers, options, has_login=bool(logins))


def _check_secrecy(servers: Servers, options: ConnectionOptions, has_login: bool) -> None:
    """Refuse, or warn of, an unencrypted connection to another machine."""
    if options.tls or all(is_own_machine(host.rpartition(":")[0]) for host in servers.hosts):
        return
    if options.require_tls:
        raise ConfigurationError(
            "options.tls", f"{servers.shown_url} is on another machine and require_tls is set; set tls to true"
        )
    if servers.password or servers.token or has_login:
        _LOG.warning(
            "%s is on another machine and tls is off: others can read the login and all data; set tls, and require_tls"
            " to refuse such connections",
            servers.shown_url,
        )


def tls_context(options: ConnectionOptions) -> ssl.SSLContext | None:
    """
    Return the TLS settings of connections, or None without TLS.

    :raises ConfigurationError: a file cannot be used.
    """
    if not options.tls:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    name = "tls_ca"
    try:
        context.load_default_certs()
        if options.tls_ca:
            context.load_verify_locations(options.tls_ca)
        if options.tls_certificate:
            name = "tls_certificate"
            # An empty password decrypts no key, so an encrypted key raises an error. Without a password argument,
            # Python would ask on the terminal.
            context.load_cert_chain(options.tls_certificate, options.tls_key, password="")
    except OSError as error:
        raise ConfigurationError(f"options.{name}", f"it cannot be used: {error}") from error
    return context


class MetadataOptions(ConnectionOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of a metadata store on NATS JetStream."""

    session_ttl_ms: SessionTtlMs = SESSION_TTL_MS
    deleted_life_ms: Annotated[
        int,
        Meta(
            ge=60_000,
            description="How long the stream keeps the message of a deletion. A write that a server applies later than"
            " this after it was sent may create a deleted record again.",
        ),
    ] = 3_600_000
    attempts_max: Annotated[
        int,
        Meta(ge=1, description="How often a write is planned again after a conflict before Unavailable is raised."),
    ] = 100
