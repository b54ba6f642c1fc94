"""Subscriptions of a load: their takeover by a run, and the detection of missing acknowledgments.

Take-over: a run claims a subscription, so that no earlier run can commit on it. The order of steps matters: *first* the
epoch is raised, *second* transactions that hold acknowledgments are searched, *last* cursors are read. The commit of an
earlier run puts its acknowledgments before it reads the epoch again. So the search finds and aborts its transaction, or
its commit finds the new epoch and stops. With the steps reversed, a commit in between would be missed, and one range
would be committed twice.

A random token is stored with the epoch. If the reply to raising it is lost, an epoch that is higher by one may belong
to another run; only the token shows which.

Missing acknowledgments: our sink acknowledges the messages that are read with ``groupId``. With other sinks, the
pipeline must call ``acknowledge``. Without acknowledgments nothing fails at first, because the checkpoint advances. But
the subscription's lag grows, retention never trims, and a lost checkpoint repeats everything.

A read task registers the range that the batch will acknowledge. Spark asks for the end of the next batch only when the
previous batch is done, and passes the end of that one. So a registered range that ends there or before, and that the
cursor has not passed, was not acknowledged by its sink. The following cases are excluded:

* A batch that is replayed, or planned from an older checkpoint: the cursor has passed it.
* A batch without data, or a batch whose tasks Spark skipped because their output was not needed: neither registered
  anything.
* A batch of another run, or of another incarnation of the cursor: it was fenced, or a seek made it obsolete.
* A single range, registered by a task that Spark had abandoned, too late for the commit of its own batch: the next
  commit passes it. So one range only logs a warning, and two raise an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from txnframework.broker import Host, dispatching_lease
from txnframework.errors import (
    InvalidTransactionState,
    LeaseHeld,
    LedgerNotFound,
    OutcomeUnknown,
    SubscriptionNotFound,
    SubscriptionOwnedElsewhere,
    TopicNotFound,
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
from txnframework.model.positions import Position
from txnframework.model.records import RegistrationDocument
from txnframework.model.transactions import Action, End
from txnframework.runtime.backoff import Backoff
from txnframework_spark.errors import NotAcknowledged
from txnframework_spark.microbatch.batch import application_coordinator
from txnframework_spark.microbatch.registration import load_subscription
from txnframework_spark.source.offsets import Frontier, Offset, SegmentOffset

HOLDER_PREFIX: Final = "spark source "
"""The prefix of a source's name as lease holder; a later run sees by it that the epoch, not the lease, decides."""

_TRIES: Final = 100
_WAIT_MS: Final = 200


@dataclass(frozen=True, slots=True)
class HeldSubscription:
    """A subscription of one topic after its takeover by a run; ``cursors`` by segment, as of the takeover."""

    topic: TopicName
    subscription: str
    epoch: int
    cursors: Mapping[str, Cursor]


@dataclass(frozen=True, slots=True)
class TakeOverRequest:
    """The run that takes over: ``holder`` is shown to others; ``start`` is where a new subscription begins."""

    host: Host
    holder: str
    start: str
    timeout_ms: int


async def take_over(
    taker: TakeOverRequest, topic: TopicName, subscription: str
) -> tuple[HeldSubscription, tuple[ILease, ...]]:
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
    return HeldSubscription(topic, subscription, epoch, cursors), tuple(leases)


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


async def _lease_all(taker: TakeOverRequest, segments: Sequence[str], subscription: str, leases: list[ILease]) -> None:
    """Acquire into ``leases`` those that block ordinary consumers; wait for consumers that hold one.

    The lease of an earlier run is not waited for: its process may be dead with a session that has not expired, or may
    live on. The epoch has fenced it already. Safety does not depend on the lease.
    """
    deadline_ms = taker.host.environment.monotonic_ms() + taker.timeout_ms
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
                if taker.host.environment.monotonic_ms() >= deadline_ms:
                    raise SubscriptionOwnedElsewhere(segment, subscription, error.holder) from error
                await Backoff(taker.host.environment, _WAIT_MS, _WAIT_MS).pause(1)


async def _end_open_transactions(host: Host, topic: str, subscription: str, segments: Sequence[str]) -> None:
    """Abort every open transaction that holds acknowledgments here, and apply every committed one."""
    coordinator = await application_coordinator(host)
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
                    # Regardless of its owner: a consumer's transaction blocks the takeover like an earlier run's.
                    await coordinator.end(End(txn_id, Action.ABORT, operator=True))
        else:
            raise Unavailable(f"transactions keep acknowledging on subscription {subscription} of {segment}")


_LOG: Final = logging.getLogger("txnframework_spark.source")
_WARNED_FROM, _REFUSED_FROM = 1, 2


@dataclass(slots=True)
class AcknowledgmentCheck:
    """Checks whether each finished batch was acknowledged, until one was; a sink that acknowledges once always does.

    ``allowed``: continue without acknowledgments. ``missing``: the number of unacknowledged batches by topic, of those
    that the subscription's record remembers.
    """

    host: Host
    allowed: bool
    missing: dict[str, int] = field(default_factory=dict)
    _looked_at: Frontier | None = None
    _found: set[TopicName] = field(default_factory=set)

    async def check(self, start: Offset, subscriptions: Iterable[HeldSubscription]) -> None:
        """
        Check whether the data before ``start``, the end of a finished batch, is acknowledged.

        :param holdings: the subscriptions of topics that exist.
        :raises NotAcknowledged: it is not acknowledged, and that is not ``allowed``.
        """
        if start.initial or start.frontier == self._looked_at:
            return
        for held_subscription in subscriptions:
            if held_subscription.topic not in self._found and str(held_subscription.topic) in start.frontier:
                # Deleted since its layout was read: the next batch's planning reports that.
                with contextlib.suppress(SubscriptionNotFound, TopicNotFound, LedgerNotFound):
                    await self._check(held_subscription, start.frontier[str(held_subscription.topic)])
        self._looked_at = start.frontier

    async def _check(self, held_subscription: HeldSubscription, held: Mapping[str, SegmentOffset]) -> None:
        topic = str(held_subscription.topic)
        _, record = await load_subscription(self.host.metadata, topic, held_subscription.subscription)
        if record.epoch != held_subscription.epoch:
            # Taken over by a newer run: the sink detects that and stops this run.
            return
        done = [one for one in record.registrations if _ends_by(one, held)]
        mine = [one for one in done if one.epoch == held_subscription.epoch]
        if not mine:
            return
        # Finished segments are not checked: they may have been removed.
        cursors = {
            name: await self._cursor(held_subscription, name) for name in held if any(name in one.end for one in done)
        }
        left = [one for one in done if _is_left(one, cursors)]
        if not any(one in left for one in mine):
            self._found.add(held_subscription.topic)
            self.missing.pop(topic, None)
            return
        self.missing[topic] = len(left)
        error = NotAcknowledged(topic, held_subscription.subscription, len(left))
        if len(left) >= _REFUSED_FROM and not self.allowed:
            raise error
        if len(mine) == _WARNED_FROM:
            _LOG.warning("%s", error)

    async def _cursor(self, held_subscription: HeldSubscription, name: str) -> Cursor:
        found = await self.host.subscription(str(held_subscription.topic), held_subscription.subscription, name)
        # Committed acknowledgments may not have reached the cursor yet.
        await found.pending_acks.recover()
        return await found.cursor.load()


def _ends_by(known: RegistrationDocument, segments: Mapping[str, SegmentOffset]) -> bool:
    """Return whether the batch ends at or before the offsets of these segments; a missing segment was finished."""
    return all(name not in segments or Position.parse(end) <= segments[name].at for name, end in known.end.items())


def _is_left(known: RegistrationDocument, cursors: Mapping[str, Cursor]) -> bool:
    """Return whether a cursor has not passed the batch."""
    return any(
        known.incarnations.get(name) == cursor.incarnation
        and Position.parse(known.start[name]) < Position.parse(known.end[name])
        and cursor.mark_delete < Position.parse(known.end[name])
        for name, cursor in cursors.items()
        if name in known.end
    )
