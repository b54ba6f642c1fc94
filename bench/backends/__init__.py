"""
The backends that are measured: databases for the framework, and the same server or file without it.

Each figure has its own backend, so that no data of another figure slows it down. A backend has further methods for
single figures, such as ``rows`` and connections of the raw driver.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from backend import Backend, SqlBackend

from backends.postgresql import postgresql
from backends.sqlite import sqlite
from backends.zookeeper import zookeeper

__all__ = ["BACKENDS", "Backend", "SqlBackend"]

BACKENDS: dict[str, Callable[[Path], AbstractContextManager[Backend]]] = {
    "sqlite": sqlite,
    "postgresql": postgresql,
    "zookeeper": zookeeper,
}
"""Opens a backend by its name; its files are created in the given directory."""
