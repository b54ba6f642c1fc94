"""Servers that a command starts for itself, uses and removes; plugins provide them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

SERVER_ROLE = "embedded server"
"""The name of the role in errors and listings."""


@dataclass(frozen=True, slots=True)
class Server:
    """
    A server that was started: ``url`` is the URL of an empty store in it.

    ``kill`` ends it at once, in any state; ``start`` starts it again on its existing data. Both block, and raise
    OSError or RuntimeError.
    """

    url: str
    kill: Callable[[], None]
    start: Callable[[], None]


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """
    A server that can be started; users write ``embedded-`` and its name in place of a store's URL.

    ``launch`` starts one, which is removed with its data at the end of the block. If it cannot start, it raises OSError
    or RuntimeError with what to install.
    """

    name: str
    launch: Callable[[], AbstractContextManager[Server]]
