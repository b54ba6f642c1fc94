"""Whether what is sent to a server, passwords before all, can be read on its way."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import parse_qsl

from txnframework.config import is_own_machine
from txnframework.errors import InvalidInput
from txnframework_sql.postgresql._url import Server

_LOG = logging.getLogger(__name__)

_DEMANDS_TLS = frozenset({"require", "verify-ca", "verify-full"})
_ADVICE = "write sslmode=verify-full&sslrootcert=... in the URL"

# The URLs, as they may be shown, of which it was said already.
_told: set[str] = set()


def refuse_clear(server: Server) -> None:
    """Raise InvalidInput for a server on another machine that may be spoken to without TLS; nothing is connected."""
    mode = dict(parse_qsl(server.driver_query)).get("sslmode") or os.environ.get("PGSSLMODE") or "prefer"
    if mode not in _DEMANDS_TLS and not _is_near(_hosts(server)):
        raise InvalidInput(f"{server.shown_url}: require_tls is set, and sslmode is {mode}; {_ADVICE}")


def needs_tls(server: Server, hosts: Sequence[str]) -> bool:
    """
    Return whether a password may be sent to another machine, and nobody was warned of that server yet.

    Most servers ask for a proof that one knows it; one that asks for the password itself is given it.
    """
    return server.shown_url not in _told and not _is_near(hosts or _hosts(server)) and _has_password(server)


def warn_of_clear(server: Server) -> None:
    """Log once that the connections to a server have no TLS."""
    _told.add(server.shown_url)
    _LOG.warning(
        "%s is on another machine and speaks no TLS: the password and all data can be read on their way; %s, and set"
        " require_tls to be refused otherwise",
        server.shown_url,
        _ADVICE,
    )


def _hosts(server: Server) -> Sequence[str]:
    return server.hosts or os.environ.get("PGHOST", "").split(",")


def _is_near(hosts: Sequence[str]) -> bool:
    return all(is_own_machine(host) for host in hosts)


def _has_password(server: Server) -> bool:
    file = server.passfile or os.environ.get("PGPASSFILE") or Path.home() / ".pgpass"
    return server.password is not None or "PGPASSWORD" in os.environ or Path(file).exists()
