"""The text of statements in the form of a driver."""

from __future__ import annotations

import re
from functools import lru_cache

_NUMBER = re.compile(r"\$(\d+)")


def by_name(text: str, arguments: tuple[object, ...]) -> tuple[str, dict[str, object] | None]:
    """Return a statement with named parameters in place of ``$1``, as psycopg reads them, and the parameters."""
    if not arguments:
        return text, None
    return _named(text), {f"p{number}": argument for number, argument in enumerate(arguments, 1)}


@lru_cache(256)
def _named(text: str) -> str:
    return _NUMBER.sub(r"%(p\1)s", text.replace("%", "%%"))
