"""SQLite: one thread for each database file, and several processes that share it."""

from __future__ import annotations

from txnframework_sql.sqlite._database import SqliteDatabase, locate
from txnframework_sql.sqlite._executor import SqliteExecutor

__all__ = ["SqliteDatabase", "SqliteExecutor", "locate"]
