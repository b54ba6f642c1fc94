"""
Plugin hooks of ``memory:`` and ``memory://name``, as metadata store and as ledger store.

``memory:`` is a new, private space for each opening; it is lost when it is closed. ``memory://name`` is one space for
all users of that name in this process, until the process ends. All of them must run in one event loop at a time.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from txnframework.config import redact_url
from txnframework.errors import ConfigurationError, InvalidInput, excerpt
from txnframework.interfaces import ILedgerStore, IMetadataStore
from txnframework.plugin import Provider, StoreContext, hookimpl
from txnframework_memory._database import MemoryConnection
from txnframework_memory._ledger_store import MemoryLedgerStore
from txnframework_memory._metadata_store import MemoryMetadataStore
from txnframework_memory.space import MemorySpace


class NamedSpaces:
    """The spaces that URLs name."""

    def __init__(self) -> None:
        self._spaces: dict[str, MemorySpace] = {}

    def space(self, context: StoreContext) -> MemorySpace:
        """Return the space that a URL names, created on first use; without a name, a new space."""
        name = _name_in(context.url)
        if not name:
            return MemorySpace(context.environment)
        if name not in self._spaces:
            self._spaces[name] = MemorySpace(context.environment)
        return self._spaces[name]

    def opened(self, url: str) -> MemorySpace:
        """
        Return a named space that a store has opened before.

        :raises InvalidInput: there is none.
        """
        name = _name_in(url)
        if name not in self._spaces:
            raise InvalidInput(f"{url} was not opened yet: open the client first, with a URL memory://name")
        return self._spaces[name]

    async def open_metadata(self, context: StoreContext) -> IMetadataStore:
        """Open a client of the records."""
        return await self.space(context).open_metadata()

    async def open_ledgers(self, context: StoreContext) -> ILedgerStore:
        """Open a client of the ledgers."""
        return await self.space(context).open_ledgers(context.identity)


def _name_in(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme != "memory" or parts.query or parts.fragment or parts.path.strip("/"):
        raise ConfigurationError(
            "", f"{excerpt(redact_url(url))} is no URL of a memory store: write memory: or memory://name"
        )
    return parts.netloc


# All plugin registries of the process share the spaces. Otherwise two hosts of one process, configured with the same
# name, would use different spaces.
_named_spaces = NamedSpaces()


def connect(url: str) -> MemoryConnection:
    """
    Return a new connection to the application's tables in the space of ``memory://name``.

    Use it as ``commit_with`` in tests, in place of a connection to a real database.

    :raises InvalidInput: no store of this name was opened yet.
    """
    return _named_spaces.opened(url).database.connect()


@hookimpl
def txnframework_metadata_stores() -> list[Provider[StoreContext, IMetadataStore]]:
    """Provide ``memory``."""
    return [Provider("memory", _named_spaces.open_metadata, MemoryMetadataStore, is_lasting=False)]


@hookimpl
def txnframework_ledger_stores() -> list[Provider[StoreContext, ILedgerStore]]:
    """Provide ``memory``."""
    return [Provider("memory", _named_spaces.open_ledgers, MemoryLedgerStore, is_lasting=False)]
