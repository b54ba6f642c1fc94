"""The plugin hooks: ``nats://host1,host2,host3/prefix`` as metadata store and as ledger store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from txnframework.interfaces import ILedgerStore, IMetadataStore
from txnframework.plugin import EmbeddedServer, Provider, Server, StoreContext, hookimpl, options_as
from txnframework_nats._options import MetadataOptions, locate


async def open_metadata(context: StoreContext) -> IMetadataStore:
    """Open the metadata store of a URL."""
    from txnframework_nats.records._metadata_store import open_metadata_store

    options = options_as(context.options, MetadataOptions)
    return await open_metadata_store(context.url, context.environment, options)


@hookimpl
def txnframework_metadata_stores() -> list[Provider[StoreContext, IMetadataStore]]:
    """Return the provider ``nats``; it imports the store when it opens one, so that listing commands is fast."""
    from txnframework_nats.records._metadata_store import NatsMetadataStore

    return [Provider("nats", open_metadata, NatsMetadataStore, options=MetadataOptions, check_url=locate)]


@hookimpl
def txnframework_ledger_stores() -> list[Provider[StoreContext, ILedgerStore]]:
    """Return the provider ``nats``."""
    from txnframework_nats.ledgers import ledger_providers

    return ledger_providers()


@hookimpl
def txnframework_servers() -> Iterable[EmbeddedServer]:
    """Return the servers ``nats`` and ``nats-cluster``, which need the extra ``testing``."""
    return (EmbeddedServer("nats", _nats), EmbeddedServer("nats-cluster", _nats_cluster))


@contextmanager
def _nats() -> Iterator[Server]:
    from txnframework_nats.testing.servers.nats import Nats

    with TemporaryDirectory(prefix="txnframework-nats-") as directory, Nats(Path(directory)) as nats:
        yield Server(f"nats://{nats.hosts}/txnframework", nats.stop, nats.start)


@contextmanager
def _nats_cluster() -> Iterator[Server]:
    from txnframework_nats.testing.servers.members import started_cluster

    with started_cluster() as server:
        yield server
