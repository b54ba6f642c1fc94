"""Whether the configured stores can be opened, each on its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TypeVar

from txnframework.broker.segment_ends import verify_all_segments
from txnframework.broker.stores import open_ledger_store, open_metadata_store, verify_store_pair
from txnframework.config import Config, redact_url
from txnframework.environment import Environment
from txnframework.errors import TxnFrameworkError
from txnframework.interfaces import ILedgerStore, IMetadataStore
from txnframework.model import paths
from txnframework.plugin import PluginRegistry

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoreProbe:
    """
    What opening one store and reading from it showed.

    ``store``: ``metadata store``, ``ledger store``, or ``pair``, which tells whether the two belong together. ``url``:
    without passwords; of a pair both. ``error``: why it failed; None: it succeeded, in ``took_ms``. A probe that was
    not made, because it needs one that failed, has neither.
    """

    store: str
    url: str
    error: TxnFrameworkError | None = None
    took_ms: float | None = None


async def probe_stores(
    config: Config, registry: PluginRegistry, environment: Environment
) -> tuple[StoreProbe, StoreProbe, StoreProbe]:
    """
    Open both stores one after the other, read from them, compare them, and close them.

    The comparison reads the end of every segment.

    An empty store is created, as any first use creates it. The ledger store is opened only if the metadata store was:
    an empty one takes the identity of its metadata store when it is created, and could not be paired with it later.
    """
    urls = redact_url(config.metadata.url), redact_url(config.ledger.url)
    untried = StoreProbe("ledger store", urls[1]), StoreProbe("pair", " and ".join(dict.fromkeys(urls)))
    async with AsyncExitStack() as opened:

        async def metadata() -> IMetadataStore:
            store = await open_metadata_store(config, registry, environment)
            opened.push_async_callback(store.close)
            await store.get(paths.ids_key(0))
            return store

        store, first = await _tried("metadata store", urls[0], metadata)
        if store is None:
            return first, *untried

        async def ledger() -> ILedgerStore:
            ledgers = await open_ledger_store(config, registry, environment, store.identity)
            opened.push_async_callback(ledgers.close)
            await ledgers.list_names("", "", 1)
            return ledgers

        ledgers, second = await _tried("ledger store", urls[1], ledger)
        if ledgers is None:
            return first, second, untried[1]

        async def belonging() -> None:
            await verify_store_pair(store, ledgers, *urls)
            await verify_all_segments(store, ledgers)

        _, pair = await _tried("pair", untried[1].url, belonging)
        return first, second, pair


async def _tried(name: str, url: str, work: Callable[[], Awaitable[T]]) -> tuple[T | None, StoreProbe]:
    clock = asyncio.get_running_loop().time
    began_s = clock()
    try:
        result = await work()
    except TxnFrameworkError as error:
        return None, StoreProbe(name, url, error)
    return result, StoreProbe(name, url, took_ms=(clock() - began_s) * 1_000)
