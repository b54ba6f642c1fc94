"""A PostgreSQL server: its parsed libpq URL with a printable form, and whether the URL requires TLS."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from txnframework.config import is_own_machine
from txnframework.errors import InvalidInput

_EXAMPLE = "write postgresql://user@host:5432/database"
_SCHEMES = ("postgresql", "postgres", "postgresql+asyncpg")
# An unencoded character of these ends a password early; the rest of such a URL is never shown.
_ENCODED = "in a user name or a password, write @ as %40, : as %3A, / as %2F, ? as %3F, # as %23 and % as %25"

# The parameters that the driver reads from a URL.
_DRIVER = frozenset(
    {
        *("user", "password", "dbname", "passfile", "application_name", "options", "target_session_attrs"),
        *("krbsrvname", "gsslib", "sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslpassword"),
        *("sslnegotiation", "ssl_min_protocol_version", "ssl_max_protocol_version"),
    }
)
_NUMBERS = frozenset(
    {
        *("connect_timeout", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count"),
        "tcp_user_timeout",
    }
)
_KNOWN = _DRIVER | _NUMBERS | {"host", "port"}
# A part of ``options``, with spaces escaped; and a setting among these parts.
_OPTION = re.compile(r"(?:\\.|[^\s\\])+")
_SETTING = re.compile(r"(?:-c|--)([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)
_PLAIN_NAME = re.compile(r"[a-z][a-z_]{0,40}")
_PLACE = re.compile(r"(\[[^\[\]]+\]|[^\[\]:]*)(?::(\d{0,5}))?", re.ASCII)
_PORT_END = 1 << 16

_TLS_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_DEMANDS_TLS = frozenset(_TLS_MODES[3:])
TLS_ADVICE = "write sslmode=verify-full&sslrootcert=... in the URL"


@dataclass(frozen=True, slots=True)
class Server:
    """
    A database on a server, and the login; values that a URL omits come from the environment, as in libpq.

    Only ``shown_url`` may be printed, and ``repr`` shows nothing else.
    """

    shown_url: str
    urls: tuple[str, ...] = field(repr=False)
    """One URL for each host, in order, in the driver's form."""
    hosts: tuple[str, ...] = field(repr=False)
    """Empty if PGHOST names the hosts, or the server is on this machine."""
    parameters: tuple[tuple[str, str], ...] = field(repr=False)
    settings: tuple[tuple[str, str], ...] = field(repr=False)
    """
    The settings in ``options``, by name. They are made once connected: a pooler may refuse or drop what comes before.
    """
    has_password: bool = field(repr=False)

    def number(self, name: str) -> int | None:
        """Return a whole number from the URL's parameters, or None."""
        found = dict(self.parameters).get(name)
        return None if found is None else int(found)

    @property
    def is_remote(self) -> bool:
        """Whether a host may be another machine."""
        return not all(is_own_machine(host) for host in self.hosts or os.environ.get("PGHOST", "").split(","))

    @property
    def may_send_password(self) -> bool:
        """
        Whether a password may be sent to another machine.

        Most servers ask for a proof of the password, some for the password itself.
        """
        passfile = dict(self.parameters).get("passfile") or os.environ.get("PGPASSFILE") or Path.home() / ".pgpass"
        return self.is_remote and (self.has_password or "PGPASSWORD" in os.environ or Path(passfile).exists())

    def require_tls(self) -> bool:
        """
        Raise InvalidInput for a server on another machine if the connection may be made without TLS.

        Return whether TLS also proves that it is the right server.
        """
        mode = dict(self.parameters).get("sslmode") or os.environ.get("PGSSLMODE") or "prefer"
        if mode not in _DEMANDS_TLS and self.is_remote:
            raise InvalidInput(f"{self.shown_url}: require_tls is set, and sslmode is {mode}; {TLS_ADVICE}")
        return mode == "verify-full" or not self.is_remote

    def require_files(self) -> None:
        """
        Raise InvalidInput if a file of the TLS settings cannot be read; the driver does not report which one it is.
        """
        given = dict(self.parameters)
        for name in ("sslrootcert", "sslcert", "sslkey", "sslcrl"):
            path = given.get(name) or os.environ.get(f"PG{name.upper()}")
            if path and not os.access(path, os.R_OK):
                raise InvalidInput(
                    f"{self.shown_url}: the file {path!r}, its {name}, cannot be read; name another file"
                )


def locate(url: str) -> Server:
    """
    Return the server that a URL names, without connecting.

    :raises InvalidInput: the URL names no server; the text contains no part of the URL that may be a secret.
    """
    try:
        split = urlsplit(url)
        given = dict(parse_qsl(split.query, keep_blank_values=True, strict_parsing=bool(split.query)))
    except ValueError:
        raise InvalidInput(f"this is not a PostgreSQL URL; {_EXAMPLE}; {_ENCODED}") from None
    if split.scheme not in _SCHEMES:
        raise InvalidInput(f"this is not a PostgreSQL URL; {_EXAMPLE}")
    if split.netloc.count("@") > 1 or "@" in split.path or split.fragment or split.path.count("/") > 1:
        raise InvalidInput(f"the PostgreSQL URL cannot be parsed; {_ENCODED}")
    _check(given)
    login, _, named = split.netloc.rpartition("@")
    places = _places(named, given)
    settings, others = _settings(given.get("options", ""))
    for_driver = given | {"options": others}
    return Server(
        shown_url=_shown(split, given),
        urls=tuple(
            _driver_url(login, split.path, for_driver, place) for place in places or [("", given.get("port", ""))]
        ),
        hosts=tuple(host.strip("[]") for host, _ in places),
        parameters=tuple(sorted(given.items())),
        settings=settings,
        has_password=":" in login or "password" in given,
    )


def _check(given: dict[str, str]) -> None:
    for name in given:
        if name not in _KNOWN:
            # The text after a "?" may be a part of a password.
            shown = f"parameter {name!r} of" if _PLAIN_NAME.fullmatch(name) else "a parameter of"
            raise InvalidInput(
                f"{shown} the PostgreSQL URL is unknown; known are {', '.join(sorted(_KNOWN))}; {_ENCODED}"
            )
        if name in _NUMBERS and not (given[name].isascii() and given[name].isdecimal()):
            raise InvalidInput(f"{name} in the PostgreSQL URL has to be a whole number")
    if given.get("sslmode", "prefer") not in _TLS_MODES:
        raise InvalidInput(f"sslmode in the PostgreSQL URL has to be one of {', '.join(_TLS_MODES)}")


def _settings(options: str) -> tuple[tuple[tuple[str, str], ...], str]:
    """Return the settings among options (``-c name=value``, ``--name=value``), and all other options."""
    settings: list[tuple[str, str]] = []
    others = []
    parts = iter(_OPTION.findall(options))
    for part in parts:
        whole = part + next(parts, "") if part == "-c" else part
        if found := _SETTING.fullmatch(re.sub(r"\\(.)", r"\1", whole)):
            settings.append((found[1].replace("-", "_"), found[2]))
        else:
            others.append(whole)
    return tuple(settings), " ".join(others)


def _places(named: str, given: dict[str, str]) -> list[tuple[str, str]]:
    """Return each host, or directory of a Unix socket, with its port; an empty port means PGPORT or 5432."""
    parts = named.split(",") if named else [part for part in given.get("host", "").split(",") if part]
    ports = given.get("port", "").split(",")
    if len(ports) not in (1, len(parts) or 1):
        raise InvalidInput(
            f"the PostgreSQL URL names {len(parts)} hosts and {len(ports)} ports; name one port, or one for each host"
        )
    places = []
    for part, other in zip(parts, ports if len(ports) > 1 else ports * len(parts), strict=True):
        host, port = (part, "") if part.startswith("/") else _host_and_port(part)
        places.append((host, port or other))
    for _, port in [*places, *(("", port) for port in ports)]:
        if port and not (port.isascii() and port.isdecimal() and 0 < int(port) < _PORT_END):
            # The text is not shown: a ":" in a password without a following "@" turns the rest of it into a port.
            raise InvalidInput(f"a port in the PostgreSQL URL is not a number from 1 to 65535; {_ENCODED}")
    return places


def _host_and_port(part: str) -> tuple[str, str]:
    found = _PLACE.fullmatch(part)
    if found is None:
        raise InvalidInput(
            "a host in the PostgreSQL URL has no port from 1 to 65535, or is an IPv6 address without brackets;"
            f" write host:5432 or [::1]:5432; {_ENCODED}"
        )
    return unquote(found[1]) or "localhost", found[2] or ""


def _driver_url(login: str, path: str, given: dict[str, str], place: tuple[str, str]) -> str:
    query = {name: value for name, value in given.items() if name in _DRIVER and (value or name != "options")}
    query |= {name: value for name, value in zip(("host", "port"), place, strict=True) if value}
    # An empty database name would hide the one in PGDATABASE.
    return f"postgresql://{login}@{path if path != '/' else ''}?{urlencode(query)}"


def _shown(split: SplitResult, given: dict[str, str]) -> str:
    login, _, named = split.netloc.rpartition("@")
    user = login.partition(":")[0] or quote(given.get("user", ""), safe="")
    database = split.path[1:] or quote(given.get("dbname", ""), safe="")
    sockets = "&".join(f"{name}={given[name]}" for name in ("host", "port") if name in given)
    return f"postgresql://{user and f'{user}@'}{named}/{database}{sockets and f'?{sockets}'}"
