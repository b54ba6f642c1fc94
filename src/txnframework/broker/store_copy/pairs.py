"""The two stores of a deployment, opened to be copied or compared."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import cast

from txnframework.broker.stores import open_ledger_store, open_metadata_store
from txnframework.config import Config, redact_url
from txnframework.environment import Environment
from txnframework.errors import InvalidInput
from txnframework.interfaces import (
    ICopyableLedgerStore,
    ICopyableMetadataStore,
    ILedgerStore,
    IMetadataStore,
    IRestorable,
)
from txnframework.model import paths
from txnframework.plugin import PluginRegistry


@dataclass(frozen=True, slots=True)
class CopyablePair:
    """
    The stores of one deployment, and their URLs without secrets.

    ``ledgers``: if both deployments share it, nothing of it is copied, and it need not be copyable.
    """

    metadata: ICopyableMetadataStore
    ledgers: ICopyableLedgerStore
    metadata_url: str
    ledger_url: str

    @property
    def identities(self) -> tuple[str, str]:
        """The identities of the metadata store and of the ledger store; both are the same in a pair that is in use."""
        return self.metadata.identity, self.ledgers.identity


@asynccontextmanager
async def open_pairs(
    source: Config, target: Config, registry: PluginRegistry, environment: Environment
) -> AsyncIterator[tuple[CopyablePair, CopyablePair]]:
    """
    Open two deployments as they are, whatever their identities; they may share a ledger store.

    A new ledger store of the target belongs to the metadata store of the target, so that opening it has no other effect
    than the first use.

    :raises InvalidInput: a store cannot be copied, or both deployments have the same metadata store.
    """
    if source.metadata.url == target.metadata.url:
        raise InvalidInput(f"{redact_url(source.metadata.url)} is the metadata store of both deployments")
    async with AsyncExitStack() as stack:
        metadata = await open_metadata_store(source, registry, environment)
        stack.push_async_callback(metadata.close)
        ledgers = await open_ledger_store(source, registry, environment, None)
        stack.push_async_callback(ledgers.close)
        into = await open_metadata_store(target, registry, environment)
        stack.push_async_callback(into.close)
        ledgers_into = ledgers
        if source.ledger.url != target.ledger.url:
            # A pair that was never begun to be copied into is opened as for use: a new ledger store then belongs to it.
            identity = into.identity if await into.get(paths.copy_key()) is None else None
            ledgers_into = await open_ledger_store(target, registry, environment, identity)
            stack.push_async_callback(ledgers_into.close)
        if into.identity == metadata.identity:
            raise InvalidInput(f"both metadata stores are {metadata.identity!r}: one is a duplicate of the other")
        is_shared = ledgers is ledgers_into
        yield _pair(source, metadata, ledgers, is_shared), _pair(target, into, ledgers_into, is_shared)


def _pair(config: Config, metadata: IMetadataStore, ledgers: ILedgerStore, is_shared: bool) -> CopyablePair:
    urls = redact_url(config.metadata.url), redact_url(config.ledger.url)
    role = IRestorable if is_shared else ICopyableLedgerStore
    for store, needed, url in ((metadata, ICopyableMetadataStore, urls[0]), (ledgers, role, urls[1])):
        if not (needed.providedBy(store) and IRestorable.providedBy(store)):
            raise InvalidInput(f"{url} cannot be copied; its plugin does not support it")
    return make_pair(metadata, ledgers, *urls)


def make_pair(metadata: IMetadataStore, ledgers: ILedgerStore, metadata_url: str, ledger_url: str) -> CopyablePair:
    """Return the stores of a deployment, which must provide the roles of copyable stores."""
    assert ICopyableMetadataStore.providedBy(metadata)
    return CopyablePair(metadata, cast(ICopyableLedgerStore, ledgers), metadata_url, ledger_url)
