"""
Deterministic simulation: an event loop in virtual time, and processes in it that can be killed.

Usage: 1. create a loop from a ``VirtualEnvironment`` and a seed; 2. create a ``Process`` for each simulated process
and spawn its tasks in it; 3. run the loop, step by step or until a condition holds; 4. kill a process at any step:
nothing of it runs afterwards, no ``finally`` and no cancellation either; 5. close the loop.

Two runs with the same seed take the same steps in the same order.
"""

from __future__ import annotations

from txnframework_simulation.simulator.faulty_stores import (
    FaultyLedgerStore,
    FaultyMetadataStore,
)
from txnframework_simulation.simulator.isolation import IsolationError
from txnframework_simulation.simulator.loop import SimulatedLoop, Stuck
from txnframework_simulation.simulator.machines import Machine, SimulatedStores, Space, World
from txnframework_simulation.simulator.schedule import Process
from txnframework_simulation.simulator.store_calls import CallFault, StoreCall, StoreCalls

__all__ = [
    "CallFault",
    "FaultyLedgerStore",
    "FaultyMetadataStore",
    "IsolationError",
    "Machine",
    "Process",
    "SimulatedLoop",
    "SimulatedStores",
    "Space",
    "StoreCall",
    "StoreCalls",
    "Stuck",
    "World",
]
