"""Leases of one notebook: each is a record that names its holder."""

from __future__ import annotations

import msgspec
from zope.interface import implementer

from txnframework.interfaces import ILease
from txnframework.model import Record
from txnframework_example._lines import Line
from txnframework_example._notebook import Notebook
from txnframework_example._watch import NotebookWatch


class LeaseDocument(msgspec.Struct, kw_only=True):
    """The content of a lease's record."""

    format: int = 1
    holder: str
    session: str
    fencing: int

    def encoded(self) -> bytes:
        """Return the document as it is stored."""
        return msgspec.json.encode(self)


@implementer(ILease)
class NotebookLease:
    """A lease, held as long as its record has the version that acquiring the lease gave it."""

    def __init__(self, notebook: Notebook, record: Record, fencing: int) -> None:
        self.key = record.key
        self.version = record.version
        self.fencing = fencing
        self._notebook = notebook

    async def lost(self) -> None:
        """Return when the lease can no longer be relied on."""
        watch = NotebookWatch(self.key)
        self._notebook.watches.add(watch)
        try:
            while self._is_held():
                await watch.changed()
        finally:
            self._notebook.watches.discard(watch)

    async def release(self) -> None:
        """Release the lease now; may be repeated, also after the lease was lost."""
        if self._is_held():
            self._notebook.write(Line(self.key.path, self._notebook.next_number(), self.key.partition))

    def _is_held(self) -> bool:
        record = self._notebook.get(self.key)
        return record is not None and record.version == self.version
