"""The hooks: ``zookeeper://host:port,host:port/chroot`` as metadata store."""

from __future__ import annotations

from txnframework.interfaces import IMetadataStore
from txnframework.plugin import Provider, StoreContext, hookimpl, options_as
from txnframework_zookeeper._options import MetadataOptions, locate


async def open_metadata(context: StoreContext) -> IMetadataStore:
    """Open the metadata store of a URL."""
    from txnframework_zookeeper._metadata_store import open_metadata_store

    options = options_as(context.options, MetadataOptions)
    return await open_metadata_store(context.url, context.environment, options)


@hookimpl
def txnframework_metadata_stores() -> list[Provider[StoreContext, IMetadataStore]]:
    """Provide ``zookeeper``; it is imported here, since the command line does not need it to list commands."""
    from txnframework_zookeeper._metadata_store import ZooKeeperMetadataStore

    return [Provider("zookeeper", open_metadata, ZooKeeperMetadataStore, options=MetadataOptions, check_url=locate)]
