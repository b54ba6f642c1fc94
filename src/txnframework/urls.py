"""URLs of stores: which store they name, and how to print them without their secrets."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from urllib.parse import unquote

from txnframework.errors import ConfigurationError, excerpt

# Also matches mistyped names: "pasword", "passwort", "pw".
_SENSITIVE = r"[^=&;?\s]*(?:pas|pw|secret|token|cred|apikey|api_key|auth|digest)[^=&;?\s]*"
_SECRET_PARAMETER = re.compile(rf"([?&;]{_SENSITIVE}=)[^&;]*", re.IGNORECASE)
_SECRET_SETTING = re.compile(rf"((?:^|[\s;,?&]){_SENSITIVE}\s*[=:]).*", re.IGNORECASE | re.DOTALL)
_SECRET_NAME = re.compile(
    r"[^=&;?]*(?:password|passwd|pwd|secret|token|credential|apikey|api_key)[^=&;?]*", re.IGNORECASE
)
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.IGNORECASE | re.DOTALL)
_SCHEME = re.compile(r"([a-z][a-z0-9.-]*)(?:\+[a-z0-9+.-]*)?:", re.IGNORECASE)
# A path has lost the second of two slashes; one letter is a drive of Windows.
_URL_AS_FILE = re.compile(r"[a-z][a-z0-9+.-]+:(?:/.*)?", re.IGNORECASE | re.DOTALL)
_AUTHORITY_END = re.compile(r"[/?#]")
_CLUSTER = re.compile(r"([a-z][a-z0-9+.-]*)://([^/?#]*)([^?#]*)(.*)", re.IGNORECASE | re.DOTALL)
# Hosts and directories of sockets, each with a port or without.
_PLACES = re.compile(r"(?:(?:\[[^\]]*\]|[^:,\[\]]*)(?::[0-9]*)?(?:,|\Z))*")

HIDDEN = "***"


def redact_url(url: str) -> str:
    """
    Return ``url`` with every password in it replaced by ``***``.

    In doubt it hides more. An unquoted password may contain ``/``, ``?`` or ``@``. So everything between the first
    ``:`` of the authority and the last ``@`` is hidden as a password. In a text that is no URL, such as
    ``postgres//user:...`` or ``host=db password=...``, everything after the name of a secret is hidden.
    """
    found = _URL.match(url)
    if found is None:
        return _SECRET_SETTING.sub(rf"\1{HIDDEN}", _without_login(url))
    scheme, rest = found.groups()
    if "@" in rest:
        rest = _without_login(rest)
    else:
        authority = _AUTHORITY_END.split(rest, maxsplit=1)[0]
        if not _PLACES.fullmatch(authority):
            # A login without a host after it, or a login whose password contains a delimiter.
            rest = f"{rest.partition(':')[0]}:{HIDDEN}"
    return f"{scheme}://" + _SECRET_PARAMETER.sub(rf"\1{HIDDEN}", rest)


def _without_login(text: str) -> str:
    """Return a text with everything between its first colon and its last at-sign hidden."""
    login, at, place = text.rpartition("@")
    user, colon, _ = login.partition(":")
    return f"{user}:{HIDDEN}@{place}" if at and colon else text


def store_name(url: str) -> str:
    """
    Return the name of the store that ``url`` asks for: its scheme, without a driver (``postgresql+psycopg``).

    Empty if the text has no scheme, and so is no URL. The part before a colon may then belong to a secret.
    """
    found = _SCHEME.match(url)
    return found[1].lower() if found else ""


def check_no_url(file: str) -> None:
    """Raise ConfigurationError, without a password, if the URL of a store is given as a configuration file."""
    if _URL_AS_FILE.fullmatch(file):
        raise ConfigurationError(
            "",
            'this is a URL, and a configuration is a file or a table; write url = "URL" under [metadata] in a file'
            " ('txnframework init' writes one), or pass the table {'metadata': {'url': 'URL'}}",
            redact_url(file),
        )


def is_own_machine(host: str) -> bool:
    """Return whether a URL's host is certainly this machine, so that data sent to it crosses no network."""
    name = host.strip("[]").partition("%")[0]
    if not name or name.startswith(("/", "@")) or name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class ClusterUrl:
    """The servers that a URL names, each ``host:port``, a path on them, and a login; ``shown_url`` may be printed."""

    hosts: tuple[str, ...]
    path: str
    shown_url: str
    user: str = ""
    password: str = field(default="", repr=False)


def parse_cluster_url(url: str, product: str, shape: str, default_port: int) -> ClusterUrl:
    """
    Return the servers, the path and the login that a URL names.

    ``urllib`` is not used: its newer versions refuse an IPv6 address behind another host.

    :param product: the name of the servers in errors.
    :param shape: how to write the URL, such as ``nats://host:port,host:port/prefix``.
    :raises ConfigurationError: the URL has another scheme, names no servers, or has text after the path.
    """
    shown_url, write = redact_url(url), f"write {shape}"
    found = _CLUSTER.fullmatch(url)
    scheme, authority, path, more = found.groups() if found else ("", "", "", "")
    login, _, hosts = authority.rpartition("@")
    if scheme.lower() != store_name(shape) or not hosts:
        raise ConfigurationError("", f"{shown_url} names no {product} servers; {write}")
    if more:
        raise ConfigurationError(
            "",
            f"{shown_url} has text after the {shape.rpartition('/')[2]}, at ? or #; set options in the section's"
            " options, and in a password write ? as %3F and # as %23",
        )
    user, _, password = (unquote(part) for part in login.partition(":"))
    if password and not user:
        raise ConfigurationError(
            "", f"{shown_url} has a password but no user; write {store_name(shape)}://user:password@host:port"
        )
    places = tuple(_with_port(host, default_port) for host in hosts.split(","))
    if "" in places:
        raise ConfigurationError("", f"{shown_url} names an invalid host or port; {write}")
    return ClusterUrl(places, unquote(path), shown_url, user, password)


def _with_port(host: str, default_port: int) -> str:
    """Return ``host:port``; empty if the host or the port is invalid."""
    name, colon, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
    if not colon:
        name, port = host, str(default_port)
    is_valid = name.isprintable() and port.isdecimal() and 0 < int(port) < 1 << 16
    return f"{name}:{port}" if name and is_valid else ""


def shown(name: str, value: object) -> str:
    """Return ``value`` as an error may print it; ``name``: the key of the value."""
    if isinstance(value, str):
        return f"{HIDDEN!r}" if _SECRET_NAME.fullmatch(name) else repr(redact_url(value))
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float) and not _SECRET_NAME.fullmatch(name):
        return excerpt(value)
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list | tuple):
        return "an array"
    return f"a value of type {type(value).__name__}"
