"""The plugin hook: ``notebook:///path/to/file`` as metadata store."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from txnframework.environment import Environment
from txnframework.errors import ConfigurationError
from txnframework.interfaces import IMetadataStore
from txnframework.plugin import Provider, StoreContext, hookimpl
from txnframework_example._notebook import Notebook
from txnframework_example._store import NotebookStore

NAME = "notebook"


class Notebooks:
    """The notebooks that are open in this process; all clients of one file share one notebook."""

    def __init__(self) -> None:
        self._open: dict[Path, Notebook] = {}

    def client(self, path: Path, environment: Environment) -> NotebookStore:
        """Open a client of a file; read the file if no client has it open."""
        self.close_unused()
        file = path.resolve()
        if file not in self._open:
            self._open[file] = Notebook(file, environment)
        return NotebookStore(self._open[file], environment)

    def is_open(self, path: Path) -> bool:
        """Return whether a file is open in this process."""
        return path.resolve() in self._open

    def close_unused(self) -> None:
        """Close the files that no client has open any more."""
        for file, notebook in tuple(self._open.items()):
            if not notebook.sessions:
                notebook.close()
                del self._open[file]


notebooks = Notebooks()


async def open_store(context: StoreContext) -> IMetadataStore:
    """Open a client of the file that the URL names."""
    parts = urlsplit(context.url)
    if parts.scheme != NAME or parts.netloc or parts.query or parts.fragment or not parts.path.strip("/"):
        raise ConfigurationError("metadata.url", "a notebook has the URL notebook:///path/to/file")
    # Three slashes: a path relative to the working directory. Four slashes: an absolute path, as for SQLite.
    return notebooks.client(Path(unquote(parts.path.removeprefix("/"))), context.environment)


@hookimpl
def txnframework_metadata_stores() -> list[Provider[StoreContext, IMetadataStore]]:
    """Provide ``notebook``."""
    return [Provider(NAME, open_store, NotebookStore)]
