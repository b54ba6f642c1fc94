"""The location of the servers, and the options of the store with their defaults."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from txnframework.config import is_own_machine, parse_cluster_url
from txnframework.errors import ConfigurationError
from txnframework.plugin import SESSION_TTL_MS, SessionTtlMs

_LOG = logging.getLogger(__name__)

PASSWORD_VARIABLE = "TXN_ZOOKEEPER_PASSWORD"  # noqa: S105
"""The environment variable with the password of a user that the URL names without a password."""

VALUES_TOGETHER_BYTES_MAX = 786_432
"""The total size of values in one request; the rest of the request is for paths and index entries."""

_DEFAULT_PORT = 2181
_SHAPE = "zookeeper://host:port,host:port/chroot"


class MetadataOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of a metadata store on ZooKeeper."""

    session_ttl_ms: SessionTtlMs = SESSION_TTL_MS
    connect_timeout_ms: Annotated[
        int,
        Meta(
            ge=1,
            description="How long opening, and an operation without a connection, waits before it raises Unavailable.",
        ),
    ] = 15_000
    requests_max: Annotated[
        int,
        # kazoo keeps every request in memory until it is answered; each may have a megabyte.
        Meta(ge=1, le=256, description="Maximum number of unanswered requests; further ones wait."),
    ] = 256
    watches_max: Annotated[
        int,
        Meta(ge=1, description="Maximum number of watched nodes; a further watch is refused."),
    ] = 4_096
    nodes_known_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Maximum number of records, and of parent nodes, in the cache with which a process plans its"
            " writes.",
        ),
    ] = 50_000
    number_block_size: Annotated[
        int,
        Meta(
            ge=1,
            description="How many numbers of sequential records a process reserves together; unused numbers are lost.",
        ),
    ] = 10_000
    index_entries_together_max: Annotated[
        int,
        Meta(
            ge=1,
            description="How many index entries a process puts below one node before it puts further entries deeper.",
        ),
    ] = 2_000
    attempts_max: Annotated[
        int,
        Meta(ge=1, description="How often a write is planned again after a conflict before Unavailable is raised."),
    ] = 100
    value_in_record_bytes_max: Annotated[
        int,
        Meta(
            ge=1,
            le=VALUES_TOGETHER_BYTES_MAX,
            description="Larger values are written in chunks, in separate requests, before the record that names them.",
        ),
    ] = 262_144
    value_bytes_max: Annotated[
        int, Meta(ge=1, description="The largest accepted value; a server holds all values in memory.")
    ] = 67_108_864
    page_bytes_max: Annotated[
        int,
        Meta(
            ge=1,
            description="A page of a scan ends when its values reach this size; it has at least one record.",
        ),
    ] = 16_777_216
    empty_nodes_delay_ms: Annotated[
        int, Meta(ge=0, description="How long a node without children is kept, in case it gets another child.")
    ] = 30_000
    empty_nodes_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Maximum number of possibly empty nodes on a process's list; others are found by listings.",
        ),
    ] = 10_000
    login: Annotated[
        Literal["digest", "sasl-digest-md5", "sasl-gssapi"],
        Meta(
            description="How a user is logged in: ZooKeeper's own digest, or SASL (needs the extra"
            " txnframework-zookeeper[sasl])."
        ),
    ] = "digest"
    sasl_service: Annotated[str, Meta(min_length=1, description="The servers' name for Kerberos.")] = "zookeeper"
    is_private: Annotated[
        bool | None,
        Meta(
            description="Let only the own login read and write the created nodes; by default if there is a login.",
        ),
    ] = None
    tls: Annotated[bool, Meta(description="Connect with TLS.")] = False
    require_tls: Annotated[bool, Meta(description="Refuse servers on other machines unless tls is true.")] = False
    tls_ca: Annotated[
        str | None, Meta(description="File with certificates to trust in addition to those of the system.")
    ] = None
    tls_certificate: Annotated[
        str | None, Meta(description="File with the client's certificate, if the servers require one.")
    ] = None
    tls_key: Annotated[str | None, Meta(description="File with the key of the client's certificate.")] = None
    tls_verify: Annotated[bool, Meta(description="Refuse a server whose certificate is not trusted.")] = True
    tls_check_host: Annotated[
        bool, Meta(description="Refuse a server whose certificate does not name the host of the URL.")
    ] = True


@dataclass(frozen=True, slots=True)
class Servers:
    """An ensemble, the store's path in it, and the login; ``shown_url`` may be printed."""

    hosts: str
    root: str
    shown_url: str
    user: str = ""
    password: str = field(default="", repr=False)


def locate(url: str, variables: Mapping[str, str] = os.environ) -> Servers:
    """
    Return the servers, path and login that a URL names.

    :raises ConfigurationError: the URL names no servers, has an invalid chroot, or has text after the path.
    """
    found = parse_cluster_url(url, "ZooKeeper", _SHAPE, _DEFAULT_PORT)
    return Servers(
        hosts=",".join(found.hosts),
        root=_root(found.path, found.shown_url),
        shown_url=found.shown_url,
        user=found.user,
        password=found.password or (variables.get(PASSWORD_VARIABLE, "") if found.user else ""),
    )


def _root(path: str, shown: str) -> str:
    root = path.rstrip("/")
    names = root.split("/")[1:]
    if any(name in ("", ".", "..") for name in names) or any(not char.isprintable() for char in root):
        raise ConfigurationError("", f"{shown} has a path that cannot be a chroot; write {_SHAPE}")
    if names[:1] == ["zookeeper"]:
        raise ConfigurationError("", f"{shown}: /zookeeper is reserved by ZooKeeper; name another chroot")
    return root


def check(servers: Servers, options: MetadataOptions) -> None:
    """
    Refuse options that contradict each other or the URL, and files that do not exist.

    :raises ConfigurationError: the first such option or file.
    """
    place = "metadata.options"
    if servers.user and not servers.password and options.login != "sasl-gssapi":
        raise ConfigurationError(
            "metadata.url", f"{servers.shown_url} names a user without a password; set {PASSWORD_VARIABLE}"
        )
    if options.login == "sasl-digest-md5" and not servers.user:
        raise ConfigurationError("metadata.url", f"{servers.shown_url} names no user to log in; write user@host")
    if options.tls_check_host and options.tls and not options.tls_verify:
        raise ConfigurationError(f"{place}.tls_check_host", "set it to false where tls_verify is false")
    if bool(options.tls_certificate) != bool(options.tls_key):
        raise ConfigurationError(f"{place}.tls_key", "name both tls_certificate and tls_key, or neither")
    for name in ("tls_ca", "tls_certificate", "tls_key"):
        value: str | None = getattr(options, name)
        if value and not options.tls:
            raise ConfigurationError(f"{place}.{name}", "set tls to true to use it")
        if value and not Path(value).is_file():
            raise ConfigurationError(f"{place}.{name}", f"file not found: {value}")
    _check_secrecy(servers, options)


def _check_secrecy(servers: Servers, options: MetadataOptions) -> None:
    """Refuse, or warn of, an unencrypted connection to another machine."""
    if options.tls or all(is_own_machine(host.rpartition(":")[0]) for host in servers.hosts.split(",")):
        return
    if options.require_tls:
        raise ConfigurationError(
            "metadata.options.tls", f"{servers.shown_url} is on another machine and require_tls is set; set tls to true"
        )
    if servers.password:
        _LOG.warning(
            "%s is on another machine and tls is off: others can read the password and all data; set tls, and"
            " require_tls to refuse such connections",
            servers.shown_url,
        )


def sasl_login(servers: Servers, options: MetadataOptions) -> dict[str, str] | None:
    """
    Return kazoo's SASL settings, or None without a SASL login.

    :raises ConfigurationError: the extra is not installed.
    """
    if options.login == "digest":
        return None
    if find_spec("puresasl") is None:
        raise ConfigurationError("metadata.options.login", "install txnframework-zookeeper[sasl] to log in by SASL")
    if options.login == "sasl-gssapi":
        kerberos = {"mechanism": "GSSAPI", "service": options.sasl_service}
        return kerberos | ({"principal": servers.user} if servers.user else {})
    return {"mechanism": "DIGEST-MD5", "username": servers.user, "password": servers.password}


def tls_context(options: MetadataOptions) -> ssl.SSLContext | None:
    """
    Return the TLS settings of connections, or None without TLS.

    :raises ConfigurationError: a file cannot be used.
    """
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
            # An empty password decrypts no key, so an encrypted key raises an error. Without a password argument,
            # Python would ask on the terminal.
            context.load_cert_chain(options.tls_certificate, options.tls_key, password="")
    except OSError as error:
        raise ConfigurationError(f"metadata.options.{name}", f"cannot be used: {error}") from error
    return context
