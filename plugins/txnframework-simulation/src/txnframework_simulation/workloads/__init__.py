"""
Workloads: what clients do at the same time, with an oracle for each; for simulations and for real processes.

Each is an object that runs over recorded clients, with choices, time and names from what it is given. ``WORKLOADS``
has them by the name that a scenario's file uses.
"""

from __future__ import annotations

from typing import Any

from txnframework_simulation.workloads.chain import Chain
from txnframework_simulation.workloads.drain import drain
from txnframework_simulation.workloads.mixture import Mixture
from txnframework_simulation.workloads.recorded_client import RecordedClient
from txnframework_simulation.workloads.workload import ActorContext, Options, Subscribed, Workload

WORKLOADS: dict[str, type[Workload[Any]]] = {"chain": Chain, "mixture": Mixture}

__all__ = ["WORKLOADS", "ActorContext", "Options", "RecordedClient", "Subscribed", "Workload", "drain"]
