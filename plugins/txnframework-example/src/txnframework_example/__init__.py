"""A metadata store in one file of JSON lines: small enough to read, whole enough to carry transactions."""

from __future__ import annotations

from txnframework_example._notebook import Notebook
from txnframework_example._store import NotebookStore

__all__ = ["Notebook", "NotebookStore"]
