"""
Conformance suites and a virtual clock for plugin authors.

To test a backend: 1. write a harness that opens it; 2. subclass the suite and set ``harness``; 3. run pytest with the
extra ``txnframework[testing]`` installed, which brings the pytest plugin that runs the tests.

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
    from txnframework.testing._suites.buffer import BufferSuite
    from txnframework.testing._suites.coordinator import CoordinatorSuite
    from txnframework.testing._suites.dispatcher import DispatcherSuite
    from txnframework.testing._suites.ledger_store import LedgerStoreSuite
    from txnframework.testing._suites.metadata_store import MetadataStoreSuite
    from txnframework.testing._suites.pending_ack import PendingAckSuite
    from txnframework.testing.capabilities import OfKind, requires
    from txnframework.testing.clock import VirtualEnvironment, run_ready
    from txnframework.testing.dispatchers import DispatcherHarness
    from txnframework.testing.harness import Belonging, Crashing, Disconnecting, Expiring, Harness, Misleading
    from txnframework.testing.processes import Processes
    from txnframework.testing.world import World, WorldHarness

__all__ = [
    "Belonging",
    "BufferSuite",
    "CoordinatorSuite",
    "Crashing",
    "Disconnecting",
    "DispatcherHarness",
    "DispatcherSuite",
    "Expiring",
    "Harness",
    "LedgerStoreSuite",
    "MetadataStoreSuite",
    "Misleading",
    "OfKind",
    "PendingAckSuite",
    "Processes",
    "VirtualEnvironment",
    "World",
    "WorldHarness",
    "requires",
    "run_ready",
]

_HOMES = {
    "Belonging": "harness",
    "BufferSuite": "_suites.buffer",
    "CoordinatorSuite": "_suites.coordinator",
    "Crashing": "harness",
    "Disconnecting": "harness",
    "DispatcherHarness": "dispatchers",
    "DispatcherSuite": "_suites.dispatcher",
    "Expiring": "harness",
    "Harness": "harness",
    "LedgerStoreSuite": "_suites.ledger_store",
    "MetadataStoreSuite": "_suites.metadata_store",
    "Misleading": "harness",
    "OfKind": "capabilities",
    "PendingAckSuite": "_suites.pending_ack",
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
