"""URLs of stores: which store they name, and how to print them without their secrets."""

from __future__ import annotations

import ipaddress
import re

from txnframework.errors import excerpt

# Also matches mistyped names: "pasword", "passwort", "pw".
_SENSITIVE = r"[^=&;?\s]*(?:pas|pw|secret|token|cred|apikey|api_key|auth|digest)[^=&;?\s]*"
_SECRET_PARAMETER = re.compile(rf"([?&;]{_SENSITIVE}=)[^&;]*", re.IGNORECASE)
_SECRET_SETTING = re.compile(rf"((?:^|[\s;,?&]){_SENSITIVE}\s*[=:]).*", re.IGNORECASE | re.DOTALL)
_SECRET_NAME = re.compile(
    r"[^=&;?]*(?:password|passwd|pwd|secret|token|credential|apikey|api_key)[^=&;?]*", re.IGNORECASE
)
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.IGNORECASE | re.DOTALL)
_SCHEME = re.compile(r"([a-z][a-z0-9.-]*)(?:\+[a-z0-9+.-]*)?:", re.IGNORECASE)
_AUTHORITY_END = re.compile(r"[/?#]")
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


def is_own_machine(host: str) -> bool:
    """Return whether a URL's host is certainly this machine, so that data sent to it crosses no network."""
    name = host.strip("[]").partition("%")[0]
    if not name or name.startswith(("/", "@")) or name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


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
