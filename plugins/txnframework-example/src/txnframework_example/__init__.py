"""A metadata store in one file of JSON lines: a short but complete example that can serve transactions."""

from __future__ import annotations

from txnframework_example._notebook import Notebook
from txnframework_example._store import NotebookStore

__all__ = ["Notebook", "NotebookStore"]
