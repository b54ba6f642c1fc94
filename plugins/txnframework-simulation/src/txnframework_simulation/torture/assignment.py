"""The assignment of a process: its name, its seed and its stores."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from txnframework_simulation.workloads import OwnRows, OwnRowsOptions, Workload
from txnframework_simulation.workloads.actions import MixtureOptions
from txnframework_simulation.workloads.actions.base import SubscriptionOptions
from txnframework_simulation.workloads.mixture import Mixture
from txnframework_simulation.workloads.own_rows import AtStep, Connect

PERSISTENT = "persistent://public/default"
ACTORS = 3
"""The number of actors in each process."""
_TRANSACTIONS = {
    "timeout_ms": 10_000,
    # Shorter than a run, so that ended transactions are forgotten while other clients still write.
    "retention_ms": 30_000,
    "max_clock_skew_ms": 500,
    "sweep_interval_ms": 2_000,
    "coordinators": 4,
}
_RETENTION = {
    # As early as possible: messages that all subscriptions have acknowledged are trimmed while readers still run.
    "time_ms": 0,
    "bytes": 0,
    "ledger_age_ms": 3_000,
    "interval_ms": 3_000,
}


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """
    One start of a process.

    ``name`` is unique within a run. ``place``: its number among concurrent processes.
    """

    name: str
    place: int
    seed: int
    history: str
    metadata: str
    ledger: str


def config(metadata: str, ledger: str) -> dict[str, Any]:
    """Return the configuration of all processes of a run."""
    stores = {"metadata": {"url": metadata}, "ledger": {"url": ledger}}
    return stores | {"transactions": dict(_TRANSACTIONS), "retention": dict(_RETENTION)}


def make_workload() -> Workload[Any]:
    """
    Return the workload: a mixture of all operations of a client, over topics that change in the meantime.

    Topics of the metadata-driven and the log-driven family take part. One subscription is moved, deleted and created
    again. The history shows less about it for certain than about the others.
    """
    topics = {"orders": 2, "invoices": 1, "ledgers": 1, f"{PERSISTENT}/entries": 1, f"{PERSISTENT}/events": 1}
    subscriptions = [
        SubscriptionOptions(topic="orders", name="billing", type="exclusive", moved=False),
        SubscriptionOptions(topic="orders", name="shipping", type="shared", moved=False),
        SubscriptionOptions(topic="invoices", name="audit", type="failover", moved=False),
        SubscriptionOptions(topic="invoices", name="search", type="key_shared", moved=False),
        SubscriptionOptions(topic="ledgers", name="moved", type="shared"),
        SubscriptionOptions(topic=f"{PERSISTENT}/entries", name="booking", type="shared", moved=False),
        SubscriptionOptions(topic=f"{PERSISTENT}/events", name="watching", type="failover", moved=False),
    ]
    return Mixture(
        MixtureOptions(
            topics=topics,
            subscriptions=tuple(subscriptions),
            actions={
                "send": 2,
                "send_in_transaction": 2,
                "send_again": 1,
                "transfer": 2,
                "branches": 1,
                "consume": 3,
                "consume_in_transaction": 5,
                "ask_outcome": 0.5,
                "ask_ack": 0.5,
                "read": 0.05,
                "audit": 0.03,
                "split": 0.03,
                "merge": 0.03,
                "seek": 0.05,
                "subscribe_again": 0.02,
                "trim": 0.05,
            },
            keys=8,
        )
    )


ARCHIVE = "archive"
"""A subscription without a consumer. So retention removes no message, and all can be compared in the end."""


def make_books(connect: Connect, at_step: AtStep) -> OwnRows:
    """
    Return the second workload, whose invoices are also rows of the application.

    It has topics and a subscription of its own, so that the others neither send to them nor acknowledge there.
    """
    options = OwnRowsOptions(
        orders="shop-orders", invoices="shop-invoices", types=("shared",), rows_last=True, forgotten=0.03
    )
    return OwnRows(options, connect, at_step)


Address = tuple[str, int]


def addresses_of(url: str) -> tuple[Address, ...]:
    """
    Return the addresses of a store's servers.

    None: the store has no server, or one without a port, so proxies are not possible.
    """
    hosts = urlsplit(url).netloc.rpartition("@")[2]
    found = [host.rpartition(":") for host in hosts.split(",")]
    if not all(host and port.isdecimal() for host, _, port in found):
        return ()
    return tuple((host, int(port)) for host, _, port in found)


def through(url: str, addresses: Iterable[Address]) -> str:
    """Return a store's URL with other addresses."""
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    hosts = ",".join(f"{host}:{port}" for host, port in addresses)
    return urlunsplit(parts._replace(netloc=f"{user}{at}{hosts}"))
