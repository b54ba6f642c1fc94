"""The metadata store keeps the rules of its role, on a real server."""

from __future__ import annotations

from txnframework.testing import MetadataStoreSuite
from txnframework_nats.testing import NatsMetadataHarness, NatsMetadataProcesses


class TestNatsMetadataStore(MetadataStoreSuite):
    """IMetadataStore in JetStream."""

    harness = NatsMetadataHarness


class TestNatsMetadataStoreAcrossProcesses(MetadataStoreSuite):
    """IMetadataStore in JetStream, each client in a process of its own."""

    harness = NatsMetadataProcesses
