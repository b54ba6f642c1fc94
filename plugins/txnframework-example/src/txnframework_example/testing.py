"""Test harness that opens notebooks for the suites of ``txnframework.testing``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from txnframework.interfaces import IMetadataStore
from txnframework.testing import Crashing, Harness, VirtualEnvironment
from txnframework_example.plugin import Notebooks

HALF_A_LINE = b'[{"path":"/half'
"""The incomplete line left by a process that is killed while it writes."""


class NotebookHarness(Harness[IMetadataStore], Crashing[IMetadataStore]):
    """Opens clients of one file; after the last client has closed, the next one reads the file again."""

    def __init__(self, directory: Path, environment: VirtualEnvironment | None = None) -> None:
        super().__init__(directory, environment)
        self._notebooks = Notebooks()
        self._file = directory / "notebook.jsonl"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[IMetadataStore]:
        """Open a client; its session ends with the block."""
        store = self._notebooks.client(self._file, self.environment)
        try:
            yield store
        finally:
            await store.close()

    async def crash(self, opened: IMetadataStore) -> None:
        """End the session; the last client of a file leaves an incomplete line."""
        await opened.close()
        self._notebooks.close_unused()
        if not self._notebooks.is_open(self._file):
            with self._file.open("ab") as file:
                file.write(HALF_A_LINE)

    async def destroy(self) -> None:
        """Close the file."""
        self._notebooks.close_unused()
