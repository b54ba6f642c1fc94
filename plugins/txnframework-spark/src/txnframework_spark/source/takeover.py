"""Take-over: a run claims a subscription, so that no earlier run can commit on it.

The order of steps matters: *first* the epoch is raised, *second* transactions that hold acknowledgments are searched,
*last* cursors are read. The commit of an earlier run puts its acknowledgments before it reads the epoch again. So the
search finds and aborts its transaction, or its commit finds the new epoch and stops. With the steps reversed, a commit
in between would be missed, and one range would be committed twice.

A random token is stored with the epoch. If the reply to raising it is lost, an epoch that is higher by one may belong
to another taker; only the token shows which.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from txnframework.broker import Host, dispatching_lease
from txnframework.errors import (
    InvalidTransactionState,
    LeaseHeld,
    OutcomeUnknown,
    SubscriptionOwnedElsewhere,
    TransactionNotFound,
    Unavailable,
    VersionMismatch,
)
from txnframework.interfaces import ILease
from txnframework.model import paths, records
from txnframework.model.cursor import Cursor
from txnframework.model.indexes import subscription_indexes
from txnframework.model.metadata import Put
from txnframework.model.names import TopicName
from txnframework.model.transactions import Action, End
from txnframework.runtime.backoff import Backoff
from txnframework_spark.microbatch.applications import coordinator_of
from txnframework_spark.microbatch.registration import load_subscription

HOLDER_PREFIX: Final = "spark source "
"""The prefix of a source's name as lease holder; a later run sees by it that the epoch, not the lease, decides."""

_TRIES: Final = 100
_WAIT_MS: Final = 200


@dataclass(frozen=True, slots=True)
class Holding:
    """A subscription of one topic after its take-over by a run; ``cursors`` by segment, as of the take-over."""

    topic: TopicName
    subscription: str
    epoch: int
    cursors: Mapping[str, Cursor]


@dataclass(frozen=True, slots=True)
class Taker:
    """The run that takes over: ``holder`` is shown to others; ``start`` is where a new subscription begins."""

    host: Host
    holder: str
    start: str
    timeout_ms: int


async def take_over(taker: Taker, topic: TopicName, subscription: str) -> tuple[Holding, tuple[ILease, ...]]:
    """
    Return the subscription as held by this run, and the dispatching leases that were available.

    :raises SubscriptionOwnedElsewhere: ordinary consumers still held a lease when the timeout expired.
    :raises Unavailable: new transactions with acknowledgments on it kept appearing; retry.
    """
    host = taker.host
    await host.topics.subscribe(topic, subscription, "earliest" if taker.start == "earliest" else "latest")
    epoch = await _raise_epoch(host, str(topic), subscription)
    layout = await host.topics.layout(topic)
    segments = [str(layout.name_of(segment.id)) for segment in layout.in_order()]
    leases: list[ILease] = []
    try:
        await _lease_all(taker, segments, subscription, leases)
        await _end_open_transactions(host, str(topic), subscription, segments)
        cursors = {name: await cursor_of(host, str(topic), subscription, name) for name in segments}
    except BaseException:
        # Only this code knows the leases: unreleased, they would block consumers as long as this process lives.
        await release_all(leases)
        raise
    return Holding(topic, subscription, epoch, cursors), tuple(leases)


async def release_all(leases: Sequence[ILease]) -> None:
    """Release leases; one whose release fails ends with the session."""
    await asyncio.gather(*(lease.release() for lease in leases), return_exceptions=True)


async def cursor_of(host: Host, topic: str, subscription: str, segment: str) -> Cursor:
    """Return the current cursor."""
    return await (await host.subscription(topic, subscription, segment)).cursor.load()


async def _raise_epoch(host: Host, topic: str, subscription: str) -> int:
    token = f"{host.environment.random_bits(128):032x}"
    key = paths.subscription_key(topic, subscription)
    for _ in range(_TRIES):
        version, record = await load_subscription(host.metadata, topic, subscription)
        if record.token == token:
            # The reply was lost, but the write was applied.
            return record.epoch
        raised = msgspec.structs.replace(record, epoch=record.epoch + 1, token=token)
        with contextlib.suppress(VersionMismatch, OutcomeUnknown):
            await host.metadata.put(Put(key, records.encode(raised), version, subscription_indexes(raised)))
            return raised.epoch
    raise Unavailable(f"subscription {subscription} of {topic} changed {_TRIES} times while it was being taken over")


async def _lease_all(taker: Taker, segments: Sequence[str], subscription: str, leases: list[ILease]) -> None:
    """Acquire into ``leases`` those that block ordinary consumers; wait for consumers that hold one.

    The lease of an earlier run is not waited for: its process may be dead with a session that has not expired, or may
    live for ever. The epoch has fenced it already. Safety does not depend on the lease.
    """
    deadline_ms = taker.host.environment.now_ms() + taker.timeout_ms
    for segment in segments:
        while True:
            try:
                leases.append(
                    await taker.host.metadata.acquire_lease(dispatching_lease(segment, subscription), taker.holder)
                )
                break
            except LeaseHeld as error:
                if error.holder.startswith(HOLDER_PREFIX):
                    break
                if taker.host.environment.now_ms() >= deadline_ms:
                    raise SubscriptionOwnedElsewhere(segment, subscription, error.holder) from error
                await Backoff(taker.host.environment, _WAIT_MS, _WAIT_MS).pause(1)


async def _end_open_transactions(host: Host, topic: str, subscription: str, segments: Sequence[str]) -> None:
    """Abort every open transaction that holds acknowledgments here, and apply every committed one."""
    coordinator = await coordinator_of(host)
    for segment in segments:
        pending_acks = (await host.subscription(topic, subscription, segment)).pending_acks
        for _ in range(_TRIES):
            # Recovery settles ended transactions: committed acknowledgments reach the cursor here.
            held = (await pending_acks.recover()).open
            if not held:
                break
            for txn_id in sorted(held):
                # It ended in the meantime: the next round settles it.
                with contextlib.suppress(InvalidTransactionState, TransactionNotFound):
                    # Regardless of its owner: a consumer's transaction blocks the take-over like an earlier run's.
                    await coordinator.end(End(txn_id, Action.ABORT, operator=True))
        else:
            raise Unavailable(f"transactions keep acknowledging on subscription {subscription} of {segment}")
