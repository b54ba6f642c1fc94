"""Coordinators, sessions and the other leases that processes hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from txnframework.client import HeldLease, Ping
from txnframework_console.views.source import Source

LEASES_MAX = 1_000
"""The most leases that are read for this view."""
SHOWN_MAX = 200


@dataclass(frozen=True, slots=True)
class CoordinatorRow:
    """The coordinators of one family: who sweeps, how many hosts take part, and who holds which ids, as text."""

    name: str
    sweeper: str | None
    hosts: int
    held: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ProcessesView:
    """``dispatching`` and ``others``: leases, at most ``SHOWN_MAX``; ``is_complete``: all leases were read."""

    ping: Ping
    coordinators: tuple[CoordinatorRow, ...]
    sessions: tuple[str, ...]
    dispatching: tuple[HeldLease, ...]
    others: tuple[HeldLease, ...]
    total: int
    is_complete: bool


@dataclass(frozen=True, slots=True)
class ProcessesQuery:
    """The leases of a system."""

    async def read(self, source: Source) -> ProcessesView:
        """Return the first leases, sorted by kind, and how fast the stores answer."""
        ping = await source.client.ping()
        kinds = [await source.client.leases(kind, leases_max=LEASES_MAX) for kind in ("coordinator ", "sweep ")]
        found = await source.client.leases(leases_max=LEASES_MAX)
        return processes(ping, tuple(dict.fromkeys((*kinds[0], *kinds[1], *found))), len(found) < LEASES_MAX)


def processes(ping: Ping, leases: tuple[HeldLease, ...], is_complete: bool) -> ProcessesView:
    """Return the view of these leases; their names are described by ``HeldLease``."""
    kinds: dict[str, list[HeldLease]] = {}
    for one in leases:
        kind = one.name.partition(" ")[0]
        # A process that shares a subscription has a lease of the subscription, beside those of its segments.
        is_known = kind in ("coordinator", "sweep", "session") or (kind == "dispatch" and "/member " not in one.name)
        kinds.setdefault(kind if is_known else "other", []).append(one)
    return ProcessesView(
        ping,
        coordinator_rows((*kinds.get("coordinator", ()), *kinds.get("sweep", ()))),
        tuple(one.holder for one in kinds.get("session", ()))[:SHOWN_MAX],
        tuple(kinds.get("dispatch", ()))[:SHOWN_MAX],
        tuple(kinds.get("other", ()))[:SHOWN_MAX],
        len(leases),
        is_complete,
    )


def coordinator_rows(leases: Iterable[HeldLease]) -> tuple[CoordinatorRow, ...]:
    """Return the coordinators that these leases name, by the name of their plugin."""
    sweepers: dict[str, str] = {}
    # The holder that the lease of a host names, by the token that the leases of its ids name.
    hosts: dict[str, dict[str, str]] = {}
    ids: dict[str, dict[str, list[int]]] = {}
    for one in leases:
        words = one.name.split(" ")
        if words[0] == "sweep":
            sweepers[words[1]] = one.holder
        elif words[2] == "host":
            hosts.setdefault(words[1], {})[words[3]] = one.holder
        elif words[2] == "id" and words[3].isdecimal():
            ids.setdefault(words[1], {}).setdefault(one.holder, []).append(int(words[3]))
    names = sorted({*sweepers, *hosts, *ids})
    return tuple(
        CoordinatorRow(
            name,
            sweepers.get(name),
            len(hosts.get(name, {})),
            tuple(
                sorted(
                    (hosts.get(name, {}).get(token, token), ranges(held)) for token, held in ids.get(name, {}).items()
                )
            ),
        )
        for name in names
    )


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as text, neighbours together: ``0-3, 7``."""
    found: list[list[int]] = []
    for one in sorted(numbers):
        if found and one == found[-1][-1] + 1:
            found[-1][1:] = [one]
        else:
            found.append([one])
    return ", ".join("-".join(map(str, one)) for one in found)
