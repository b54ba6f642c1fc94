"""URLs of stores: which store they name, and how to print them without their secrets."""

from __future__ import annotations

import re

_SENSITIVE = r"[^=&;?]*(?:password|passwd|pwd|secret|token|credential|apikey|api_key)[^=&;?]*"
_SECRET_PARAMETER = re.compile(rf"([?&;]{_SENSITIVE}=)[^&;]*", re.IGNORECASE)
_SECRET_NAME = re.compile(_SENSITIVE, re.IGNORECASE)

HIDDEN = "***"


def redact_url(url: str) -> str:
    """
    Return ``url`` with every password in it replaced by ``***``.

    Rather too much is hidden than too little: a password that should have been quoted may itself hold ``/``,
    ``?`` or ``@``, so everything between the first ``:`` of the authority and the last ``@`` is taken for one.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return _SECRET_PARAMETER.sub(rf"\1{HIDDEN}", url)
    login, at, place = rest.rpartition("@")
    if at and not rest.startswith("/"):
        user, colon, _ = login.partition(":")
        rest = f"{user}:{HIDDEN}@{place}" if colon else f"{login}@{place}"
    return scheme + separator + _SECRET_PARAMETER.sub(rf"\1{HIDDEN}", rest)


def store_name(url: str) -> str:
    """
    Return the name of the store that ``url`` asks for: its scheme, without a driver (``postgresql+psycopg``).

    Empty if the text has no scheme and so is no URL.
    """
    scheme, separator, _ = url.partition(":")
    return scheme.partition("+")[0].lower() if separator else ""


def shown(name: str, value: object) -> str:
    """Return ``value``, found under the key ``name``, as an error may print it."""
    if isinstance(value, str):
        return f"{HIDDEN!r}" if _SECRET_NAME.fullmatch(name) else repr(redact_url(value))
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float) and not _SECRET_NAME.fullmatch(name):
        return repr(value)
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list | tuple):
        return "an array"
    return f"a value of type {type(value).__name__}"
