"""Checks that a metadata store and a ledger store belong together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from txnframework.config import Config, redact_url, store_name
from txnframework.environment import Environment
from txnframework.errors import DeploymentClosed, StoreMismatch
from txnframework.interfaces import (
    ILedgerStore,
    IMetadataStore,
    IObserver,
)
from txnframework.model import paths, records
from txnframework.plugin import PluginRegistry, StoreContext

if TYPE_CHECKING:
    from txnframework.instruments import Instruments


COPIED = "copied-"
"""How the identity of a copy of a deployment begins."""


@dataclass(frozen=True, slots=True)
class HostContext:
    """
    The configuration, the plugins, time and randomness, and the two open stores.

    ``metrics`` records metrics, and ``observer`` is notified of operations; with None there are none.
    """

    config: Config
    registry: PluginRegistry
    environment: Environment
    metadata: IMetadataStore
    ledgers: ILedgerStore
    metrics: Instruments | None = None
    observer: IObserver | None = None

    @property
    def process(self) -> str:
        """The name of this process, ``CLIENT@HOST:PID``, for leases and transactions."""
        return self.environment.process_name(self.config.client.name)


async def open_stores(
    config: Config, registry: PluginRegistry, environment: Environment, *, as_they_are: bool = False
) -> tuple[IMetadataStore, ILedgerStore]:
    """
    Open both stores. With ``as_they_are``, the ledgers may belong to another metadata store.

    :raises UnknownPlugin: no installed plugin serves a URL.
    :raises StoreMismatch: the ledgers belong to another metadata store.
    :raises DeploymentClosed: the deployment was copied to other stores, or is being copied.
    """
    metadata = await open_metadata_store(config, registry, environment)
    try:
        ledgers = await open_ledger_store(config, registry, environment, None if as_they_are else metadata.identity)
    except StoreMismatch as error:
        await metadata.close()
        if COPIED in error.reason:
            raise DeploymentClosed(
                f"the deployment in {redact_url(config.metadata.url)} and {redact_url(config.ledger.url)} is closed: it"
                f" was copied to other stores, or is a copy that is not complete ({error.reason})"
            ) from error
        raise StoreMismatch(
            f"{error.reason}; metadata.url is {redact_url(config.metadata.url)} and ledger.url is "
            f"{redact_url(config.ledger.url)}: use two stores that were created together"
        ) from error
    except BaseException:
        await metadata.close()
        raise
    return metadata, ledgers


async def open_metadata_store(config: Config, registry: PluginRegistry, environment: Environment) -> IMetadataStore:
    """Open the configured metadata store."""
    provider = registry.metadata_store(store_name(config.metadata.url))
    options = registry.decode_options(provider, config.metadata.options)
    return await registry.open(provider, StoreContext(config.metadata.url, environment, options))


async def open_ledger_store(
    config: Config, registry: PluginRegistry, environment: Environment, identity: str | None
) -> ILedgerStore:
    """Open the configured ledger store; a new one adopts ``identity``."""
    provider = registry.ledger_store(store_name(config.ledger.url))
    options = registry.decode_options(provider, config.ledger.options)
    return await registry.open(provider, StoreContext(config.ledger.url, environment, options, identity))


async def verify_store_pair(store: IMetadataStore, ledgers: ILedgerStore, store_url: str, ledger_url: str) -> None:
    """
    Refuse a pair of stores of which one was restored from a backup.

    Otherwise the id of a transaction that the metadata store does not know would count as committed. The ledgers are
    read first. Ids are reserved before they are used. So in a healthy pair, the reserved block is always at least as
    high as the ids read from the ledgers before. URLs are passed without their secrets.

    :raises StoreMismatch: the identities differ, or the ledgers contain an id that the metadata store never reserved.
    """
    if ledgers.identity != store.identity:
        raise StoreMismatch(
            f"{store_url} is {store.identity!r}, but {ledger_url} belongs to {ledgers.identity!r}; "
            "use two stores that were created together"
        )
    found = await beyond_reserved(store, ledgers)
    if found is not None:
        raise StoreMismatch(
            f"{ledger_url} ({ledgers.identity!r}) contains entries of transaction number {found.number} of coordinator"
            f" {found.coordinator}, but {store_url} ({store.identity!r}) reserved only numbers below {found.reserved}:"
            " it is older than the ledgers, as after a restore from a backup"
        )


@dataclass(frozen=True, slots=True)
class BeyondReserved:
    """A transaction number that the ledgers contain and the metadata store never reserved."""

    coordinator: int
    number: int
    reserved: int


async def beyond_reserved(store: IMetadataStore, ledgers: ILedgerStore) -> BeyondReserved | None:
    """Return a transaction number in the ledgers that the metadata store never reserved; None if there is none."""
    highest = await ledgers.highest_txn_numbers()
    for coordinator, number in sorted(highest.items()):
        record = await store.get(paths.ids_key(coordinator))
        reserved = 0 if record is None else records.decode(records.IdBlock, record).next
        if number >= reserved:
            return BeyondReserved(coordinator, number, reserved)
    return None
