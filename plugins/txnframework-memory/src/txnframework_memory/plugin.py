"""
Plugin hooks of ``memory:`` and ``memory://name``, as metadata store and as ledger store.

``memory:`` is a new, private space for each opening; it is lost when it is closed. ``memory://name`` is one space for
all users of that name in this process, until the process ends. All of them must run in one event loop at a time.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from txnframework.errors import ConfigurationError
from txnframework.interfaces import ILedgerStore, IMetadataStore
from txnframework.plugin import Provider, StoreContext, hookimpl
from txnframework_memory._ledger_store import MemoryLedgerStore
from txnframework_memory._metadata_store import MemoryMetadataStore
from txnframework_memory.space import MemorySpace


class NamedSpaces:
    """The spaces that URLs name."""

    def __init__(self) -> None:
        self._spaces: dict[str, MemorySpace] = {}

    def space(self, context: StoreContext) -> MemorySpace:
        """Return the space that a URL names, created on first use; without a name, a new space."""
        parts = urlsplit(context.url)
        if parts.scheme != "memory" or parts.query or parts.fragment or parts.path.strip("/"):
            raise ConfigurationError("", "a memory store has the URL memory: or memory://name")
        if not parts.netloc:
            return MemorySpace(context.environment)
        if parts.netloc not in self._spaces:
            self._spaces[parts.netloc] = MemorySpace(context.environment)
        return self._spaces[parts.netloc]

    async def open_metadata(self, context: StoreContext) -> IMetadataStore:
        """Open a client of the records."""
        return await self.space(context).open_metadata()

    async def open_ledgers(self, context: StoreContext) -> ILedgerStore:
        """Open a client of the ledgers."""
        return await self.space(context).open_ledgers(context.identity)


# All plugin registries of the process share the spaces. Otherwise two hosts of one process, configured with the same
# name, would use different spaces.
_named_spaces = NamedSpaces()


@hookimpl
def txnframework_metadata_stores() -> list[Provider[StoreContext, IMetadataStore]]:
    """Provide ``memory``."""
    return [Provider("memory", _named_spaces.open_metadata, MemoryMetadataStore)]


@hookimpl
def txnframework_ledger_stores() -> list[Provider[StoreContext, ILedgerStore]]:
    """Provide ``memory``."""
    return [Provider("memory", _named_spaces.open_ledgers, MemoryLedgerStore)]
