"""SQLite: one thread for each database file, and several processes that share it."""

from __future__ import annotations

from txnframework_sql.sqlite._bridge import SqliteBridge
from txnframework_sql.sqlite._database import SqliteDatabase, locate

__all__ = ["SqliteBridge", "SqliteDatabase", "locate"]
