"""
Stores in memory for tests of programs (``MemoryStores``); conformance suites and a virtual clock for plugin authors.

To test a backend: 1. write a harness that opens it; 2. subclass the suite and set ``harness``; 3. run pytest. The extra
``txnframework[testing]`` installs the pytest plugin that runs the tests.

    class SqlHarness(Harness[IMetadataStore]):
        @asynccontextmanager
        async def open(self) -> AsyncIterator[IMetadataStore]:
            store = await open_store(self.directory / "db", self.environment)
            try:
                yield store
            finally:
                await store.close()


    class TestSqlStore(MetadataStoreSuite):
        harness = SqlHarness

Names are loaded on first use: every pytest run imports this package before pytest can rewrite the suites' asserts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from txnframework.testing._suites._buffer import BufferSuite
    from txnframework.testing._suites._coordinator import CoordinatorSuite, JointCommitSuite
    from txnframework.testing._suites._dispatcher import DispatcherSuite
    from txnframework.testing._suites._ledger import LedgerStoreSuite
    from txnframework.testing._suites._metadata import MetadataStoreSuite
    from txnframework.testing._suites._pending_ack import PendingAckSuite
    from txnframework.testing.capabilities import OfKind, requires
    from txnframework.testing.clock import AdvanceableEnvironment, VirtualEnvironment, run_ready
    from txnframework.testing.harness import (
        CoCommitting,
        Colocated,
        Crashing,
        Disconnecting,
        DispatcherHarness,
        Expiring,
        Harness,
        Misleading,
        OwnRows,
        Paired,
    )
    from txnframework.testing.memory_stores import MemoryStores
    from txnframework.testing.processes import Processes
    from txnframework.testing.world import World, WorldHarness

__all__ = [
    "AdvanceableEnvironment",
    "BufferSuite",
    "CoCommitting",
    "Colocated",
    "CoordinatorSuite",
    "Crashing",
    "Disconnecting",
    "DispatcherHarness",
    "DispatcherSuite",
    "Expiring",
    "Harness",
    "JointCommitSuite",
    "LedgerStoreSuite",
    "MemoryStores",
    "MetadataStoreSuite",
    "Misleading",
    "OfKind",
    "OwnRows",
    "Paired",
    "PendingAckSuite",
    "Processes",
    "VirtualEnvironment",
    "World",
    "WorldHarness",
    "requires",
    "run_ready",
]

_HOMES = {
    "AdvanceableEnvironment": "clock",
    "CoCommitting": "harness",
    "Colocated": "harness",
    "OwnRows": "harness",
    "Paired": "harness",
    "BufferSuite": "_suites._buffer",
    "CoordinatorSuite": "_suites._coordinator",
    "Crashing": "harness",
    "Disconnecting": "harness",
    "DispatcherHarness": "harness",
    "DispatcherSuite": "_suites._dispatcher",
    "Expiring": "harness",
    "Harness": "harness",
    "JointCommitSuite": "_suites._coordinator",
    "LedgerStoreSuite": "_suites._ledger",
    "MetadataStoreSuite": "_suites._metadata",
    "MemoryStores": "memory_stores",
    "Misleading": "harness",
    "OfKind": "capabilities",
    "PendingAckSuite": "_suites._pending_ack",
    "Processes": "processes",
    "VirtualEnvironment": "clock",
    "World": "world",
    "WorldHarness": "world",
    "requires": "capabilities",
    "run_ready": "clock",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
