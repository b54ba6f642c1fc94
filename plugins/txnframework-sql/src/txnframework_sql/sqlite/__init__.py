"""SQLite: one thread for each database file, and several processes that share it."""

from __future__ import annotations

from txnframework_sql.sqlite._bridge import SqliteBridge
from txnframework_sql.sqlite._database import SqliteDatabase, locate
from txnframework_sql.sqlite._look import Look, look

__all__ = ["Look", "SqliteBridge", "SqliteDatabase", "locate", "look"]
