"""
Workloads: concurrent operations of clients, with an oracle for each workload; for simulations and for real processes.

A workload runs over recorded clients. Its choices, its time and its names come from the caller. ``WORKLOADS`` contains
the workloads by the name in a scenario file.
"""

from __future__ import annotations

from typing import Any

from txnframework_simulation.workloads.chain import Chain
from txnframework_simulation.workloads.drain import drain
from txnframework_simulation.workloads.handlers import Handlers
from txnframework_simulation.workloads.mixture import Mixture
from txnframework_simulation.workloads.own_rows import OwnRows, OwnRowsOptions
from txnframework_simulation.workloads.recorded_client import RecordedClient
from txnframework_simulation.workloads.workload import ActorContext, Options, Subscribed, Workload

WORKLOADS: dict[str, type[Workload[Any]]] = {
    "chain": Chain,
    "handlers": Handlers,
    "mixture": Mixture,
    "own_rows": OwnRows,
}

__all__ = [
    "WORKLOADS",
    "ActorContext",
    "Options",
    "OwnRows",
    "OwnRowsOptions",
    "RecordedClient",
    "Subscribed",
    "Workload",
    "drain",
]
