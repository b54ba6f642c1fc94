"""Where a PostgreSQL server is: URLs as libpq knows them, and what may be shown of one."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from txnframework.errors import InvalidInput

_EXAMPLE = "write postgresql://user@host:5432/database"
_SCHEMES = ("postgresql", "postgres", "postgresql+asyncpg")
# A password with one of these in it ends where nobody meant it to; what it then looks like is never shown.
_ENCODED = "in a user name or a password, write @ as %40, : as %3A, / as %2F, ? as %3F, # as %23 and % as %25"

_PLACE = frozenset({"host", "port", "user", "password", "dbname", "passfile"})
# Read by the driver, from a URL only.
_DRIVER = frozenset(
    {
        "sslmode",
        "sslcert",
        "sslkey",
        "sslrootcert",
        "sslcrl",
        "sslpassword",
        "sslnegotiation",
        "ssl_min_protocol_version",
        "ssl_max_protocol_version",
        "target_session_attrs",
        "krbsrvname",
        "gsslib",
    }
)
_SETTINGS = frozenset({"application_name", "options"})
_NUMBERS = frozenset(
    {
        "connect_timeout",
        "keepalives",
        "keepalives_idle",
        "keepalives_interval",
        "keepalives_count",
        "tcp_user_timeout",
    }
)
_KNOWN = _PLACE | _DRIVER | _SETTINGS | _NUMBERS
_PLAIN_NAME = re.compile(r"[a-z][a-z_]{0,40}")
_TLS_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


@dataclass(frozen=True, slots=True)
class Server:
    """
    Which database on which server, and as whom; what is None or empty comes from the environment, as libpq has it.

    ``shown_url`` may be printed; nothing else here may, and ``repr`` shows nothing else.
    """

    shown_url: str
    hosts: tuple[str, ...] = field(repr=False, default=())
    ports: tuple[int, ...] = field(repr=False, default=())
    user: str | None = field(repr=False, default=None)
    password: str | None = field(repr=False, default=None)
    database: str | None = field(repr=False, default=None)
    passfile: str | None = field(repr=False, default=None)
    driver_query: str = field(repr=False, default="")
    settings: tuple[tuple[str, str], ...] = field(repr=False, default=())
    numbers: tuple[tuple[str, int], ...] = field(repr=False, default=())

    def number(self, name: str) -> int | None:
        """Return a whole number that the URL gives, or None."""
        return dict(self.numbers).get(name)


def locate(url: str) -> Server:
    """
    Return the server that a URL names; nothing is connected, and of the environment only PGPORT is read.

    :raises InvalidInput: it names none; no part of the URL that may be a secret is in the text.
    """
    try:
        split = urlsplit(url)
        parameters = _parameters(split)
    except ValueError:
        raise InvalidInput(f"this is not a PostgreSQL URL; {_EXAMPLE}; {_ENCODED}") from None
    if split.scheme not in _SCHEMES:
        raise InvalidInput(f"this is not a PostgreSQL URL; {_EXAMPLE}")
    if split.netloc.count("@") > 1 or "@" in split.path or split.fragment or split.path.count("/") > 1:
        raise InvalidInput(f"the PostgreSQL URL cannot be taken apart; {_ENCODED}")
    login, _, place = split.netloc.rpartition("@")
    user, colon, password = login.partition(":")
    hosts, ports = _hosts(place, parameters)
    database = unquote(split.path[1:]) or parameters.get("dbname")
    shown_user = unquote(user) or parameters.get("user")
    return Server(
        shown_url=_shown(shown_user, hosts, ports, database),
        hosts=hosts,
        ports=ports,
        user=shown_user,
        password=unquote(password) if colon else parameters.get("password"),
        database=database,
        passfile=parameters.get("passfile"),
        driver_query=urlencode({name: parameters[name] for name in sorted(_DRIVER & parameters.keys())}),
        settings=tuple((name, parameters[name]) for name in sorted(_SETTINGS & parameters.keys())),
        numbers=tuple((name, _number(name, parameters[name])) for name in sorted(_NUMBERS & parameters.keys())),
    )


def require_files(server: Server) -> None:
    """Raise InvalidInput if a file of the TLS settings cannot be read; the driver does not say which one it is."""
    given = dict(parse_qsl(server.driver_query))
    for name in ("sslrootcert", "sslcert", "sslkey", "sslcrl"):
        path = given.get(name) or os.environ.get(f"PG{name.upper()}")
        if path and not os.access(path, os.R_OK):
            raise InvalidInput(f"{server.shown_url}: the file {path!r}, its {name}, cannot be read; name another one")


def _parameters(split: SplitResult) -> dict[str, str]:
    parameters = dict(parse_qsl(split.query, keep_blank_values=True, strict_parsing=bool(split.query)))
    for name in parameters:
        if name not in _KNOWN:
            # What stands behind a "?" that belongs to a password may be a part of it.
            shown = f"parameter {name!r} of" if _PLAIN_NAME.fullmatch(name) else "a parameter of"
            raise InvalidInput(
                f"{shown} the PostgreSQL URL is not known here; known are {', '.join(sorted(_KNOWN))}; {_ENCODED}"
            )
    mode = parameters.get("sslmode")
    if mode is not None and mode not in _TLS_MODES:
        raise InvalidInput(f"sslmode in the PostgreSQL URL has to be one of {', '.join(_TLS_MODES)}")
    return parameters


def _hosts(place: str, parameters: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return hosts, or directories of Unix sockets, and for each of them its port."""
    named = [_host_and_port(part) for part in place.split(",")] if place else []
    if not named and "host" in parameters:
        named = [_host_and_port(part) if not part.startswith("/") else (part, None) for part in _listed(parameters)]
    if not named:
        # As libpq: PGHOST, then where a server on this machine has its sockets.
        return (), (_port(parameters["port"]),) if "port" in parameters else ()
    others = [_port(part) for part in parameters["port"].split(",")] if "port" in parameters else [_default_port()]
    if len(others) == 1:
        others *= len(named)
    if len(others) != len(named):
        raise InvalidInput(f"the PostgreSQL URL names {len(named)} hosts and {len(others)} ports; name one or as many")
    return (
        tuple(host for host, _ in named),
        tuple(port or other for (_, port), other in zip(named, others, strict=True)),
    )


def _listed(parameters: Mapping[str, str]) -> list[str]:
    return [part for part in parameters["host"].split(",") if part]


def _host_and_port(part: str) -> tuple[str, int | None]:
    if part.startswith("["):
        host, bracket, rest = part[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise InvalidInput("the PostgreSQL URL has an IPv6 address without its closing bracket; write [::1]:5432")
        return unquote(host), _port(rest[1:]) if rest[1:] else None
    host, _, port = part.partition(":")
    if ":" in port:
        raise InvalidInput("the PostgreSQL URL has an IPv6 address without brackets; write [::1]:5432")
    return unquote(host) or "localhost", _port(port) if port else None


def _default_port() -> int:
    return _port(os.environ.get("PGPORT") or "5432")


def _port(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 0 < int(text) < 1 << 16:
        # The text is not shown: a ":" in a password that is not followed by "@" makes a port of the rest.
        raise InvalidInput(f"the port in the PostgreSQL URL or in PGPORT is not a number from 1 to 65535; {_ENCODED}")
    return int(text)


def _number(name: str, text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise InvalidInput(f"{name} in the PostgreSQL URL has to be a whole number")
    return int(text)


def _shown(user: str | None, hosts: tuple[str, ...], ports: tuple[int, ...], database: str | None) -> str:
    login = f"{quote(user, safe='')}@" if user else ""
    path = f"/{quote(database, safe='')}" if database else "/"
    if any(host.startswith("/") for host in hosts):
        ported = f"&port={','.join(str(port) for port in ports)}" if set(ports) != {5432} else ""
        return f"postgresql://{login}{path}?host={','.join(hosts)}{ported}"
    places = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in zip(hosts, ports, strict=False))
    return f"postgresql://{login}{','.join(places)}{path}"
