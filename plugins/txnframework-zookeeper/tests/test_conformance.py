"""The metadata store keeps the rules of its role, on a real server."""

from __future__ import annotations

from txnframework.testing import MetadataStoreSuite
from txnframework_zookeeper.testing import ZooKeeperMetadataHarness, ZooKeeperMetadataProcesses


class TestZooKeeperMetadataStore(MetadataStoreSuite):
    """IMetadataStore in ZooKeeper."""

    harness = ZooKeeperMetadataHarness


class TestZooKeeperMetadataStoreAcrossProcesses(MetadataStoreSuite):
    """IMetadataStore in ZooKeeper, each client in a process of its own."""

    harness = ZooKeeperMetadataProcesses
