"""The plugin hooks: ``zookeeper://host:port,host:port/chroot`` as metadata store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from txnframework.interfaces import IMetadataStore
from txnframework.plugin import EmbeddedServer, Provider, Server, StoreContext, hookimpl, options_as
from txnframework_zookeeper._options import MetadataOptions, locate


async def open_metadata(context: StoreContext) -> IMetadataStore:
    """Open the metadata store of a URL."""
    from txnframework_zookeeper._metadata_store import open_metadata_store

    options = options_as(context.options, MetadataOptions)
    return await open_metadata_store(context.url, context.environment, options)


@hookimpl
def txnframework_metadata_stores() -> list[Provider[StoreContext, IMetadataStore]]:
    """Return the provider ``zookeeper``; it imports the store when it opens one, so that listing commands is fast."""
    from txnframework_zookeeper._metadata_store import ZooKeeperMetadataStore

    return [Provider("zookeeper", open_metadata, ZooKeeperMetadataStore, options=MetadataOptions, check_url=locate)]


@hookimpl
def txnframework_servers() -> Iterable[EmbeddedServer]:
    """Return the server ``zookeeper``, which needs Java, and PySpark for its jars."""
    return (EmbeddedServer("zookeeper", _zookeeper),)


@contextmanager
def _zookeeper() -> Iterator[Server]:
    from txnframework_zookeeper.testing.servers.zookeeper import ZooKeeper

    with TemporaryDirectory(prefix="txnframework-zookeeper-") as directory, ZooKeeper(Path(directory)) as zookeeper:
        yield Server(f"zookeeper://{zookeeper.hosts}/txnframework", zookeeper.stop, zookeeper.start)
