"""The hooks: ``zookeeper://host:port,host:port/chroot`` as metadata store."""

from __future__ import annotations

from txnframework.interfaces import IMetadataStore
from txnframework.plugin import Provider, StoreContext, hookimpl


@hookimpl
def txnframework_metadata_stores() -> list[Provider[StoreContext, IMetadataStore]]:
    """Provide ``zookeeper``."""
    return []
