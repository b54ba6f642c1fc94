"""
SQLite: one thread for each database file, and several processes that share it.

The layers, lowest first: ``_errors`` translates errors, ``_location`` finds the file of a URL, and ``_files`` and
``_presence`` protect the files. A ``_connection`` performs steps, and ``_schema`` creates the tables. ``_thread``
executes groups of ``_jobs`` on the connection. ``_poller`` wakes watches. ``_database`` provides all of this to the
stores.
"""

from __future__ import annotations

from txnframework_sql.sqlite._connection import SqliteConnection
from txnframework_sql.sqlite._database import Kind, SqliteDatabase
from txnframework_sql.sqlite._location import locate

__all__ = ["Kind", "SqliteConnection", "SqliteDatabase", "locate"]
