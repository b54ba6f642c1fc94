"""
For plugin authors: the conformance suites, and the clock to test with.

How it is used: 1. write a harness that opens your backend; 2. subclass the suite and name the harness; 3. run pytest,
which finds the rest through the extra ``txnframework[testing]``.

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

What stands here is loaded when it is first asked for: pytest imports this package in every run, long before assert
statements of the suites can be rewritten.
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
