"""Servers that a command starts for itself, uses and removes, as plugins offer them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

SERVER_ROLE = "embedded server"
"""What errors and listings call it."""


@dataclass(frozen=True, slots=True)
class Server:
    """
    A server that was started: ``url`` is the URL of an empty store in it.

    ``kill`` ends it at once, whatever it does; ``start`` starts it again on the data that it has. Both block, and raise
    OSError or RuntimeError.
    """

    url: str
    kill: Callable[[], None]
    start: Callable[[], None]


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """
    One server that can be started; users type ``embedded-`` and its name where a store's URL may be.

    ``launch`` starts one, which is gone, with its data, when the block ends. It raises OSError or RuntimeError,
    with what to install, if it cannot.
    """

    name: str
    launch: Callable[[], AbstractContextManager[Server]]
