"""What a batch reads of a subscription: registered by the read tasks, and found by the sink's commit.

Spark passes no data between source and sink: the source's driver process does not know the query id, and the sink's
process does not know the offsets. Both know the task context. So the first read task of a batch registers ``(query,
run, batch) -> start, end, incarnations, epoch`` in the subscription record before it returns a row. The commit finds
the registration by index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from txnframework.errors import Fenced, OutcomeUnknown, SubscriptionNotFound, VersionMismatch
from txnframework.interfaces import IMetadataStore
from txnframework.model import index_keys, paths, records
from txnframework.model.indexes import REGISTRATIONS_BY_BATCH, subscription_indexes
from txnframework.model.metadata import IndexRange, Key, KeyRange, Put
from txnframework.model.positions import Position
from txnframework.model.records import RegistrationDocument, SubscriptionRecord
from txnframework_spark.errors import Diverged, Unsupported
from txnframework_spark.microbatch.batch import MicroBatch

RUN_BATCHES_MAX: Final = 2
"""
The number of batches of each run that a subscription record remembers.

A run decides a batch before it plans the next one. So of older batches only tasks that Spark has abandoned can be left,
and they are refused.
"""
REGISTRATIONS_MAX: Final = 32
"""
The number of batches that the record remembers of all runs.

A commit that is paused while so many batches of newer runs are registered no longer finds its own.
"""

_PAGE: Final = 100


@dataclass(frozen=True, slots=True)
class Registration:
    """The ranges that a batch reads of one subscription, and the epoch of the takeover that planned them."""

    topic: str
    subscription: str
    epoch: int
    ranges: tuple[Range, ...]


async def register(store: IMetadataStore, facts: MicroBatch, registration: Registration) -> None:
    """
    Register ``reading`` for the batch; idempotent, callable from any of its tasks.

    :raises Fenced: another run took the subscription over after the batch was planned, or the run has gone on to later
        batches; nothing was registered.
    :raises Unsupported: two loads of the query read the same subscription.
    :raises Diverged: the batch is already registered with another range.
    """
    wanted = _encode(facts, registration)
    while True:
        version, record = await load_subscription(store, registration.topic, registration.subscription)
        _check(record, wanted, registration)
        if wanted in record.registrations:
            return
        record.registrations = _with(record.registrations, wanted)
        key = paths.subscription_key(registration.topic, registration.subscription)
        try:
            await store.put(Put(key, records.encode(record), version, subscription_indexes(record)))
            return
        except (VersionMismatch, OutcomeUnknown):
            # Another task wrote first, or the reply was lost: the next read shows which.
            continue


def _with(registrations: Sequence[RegistrationDocument], wanted: RegistrationDocument) -> list[RegistrationDocument]:
    """
    Return the registrations with ``wanted`` as the newest, without those that are no longer needed.

    :raises Fenced: the run of ``wanted`` has registered too many later batches.
    """
    mine = [known.batch for known in registrations if (known.query, known.run) == (wanted.query, wanted.run)]
    oldest = sorted([*mine, wanted.batch])[-RUN_BATCHES_MAX:][0]
    if wanted.batch < oldest:
        raise Fenced(f"batch {wanted.batch} of query {wanted.query}", f"batch {max(mine)}")
    others = [
        known
        for known in registrations
        if (known.query, known.run) != (wanted.query, wanted.run) or known.batch >= oldest
    ]
    return [*others, wanted][-REGISTRATIONS_MAX:]


def _check(record: SubscriptionRecord, wanted: RegistrationDocument, registration: Registration) -> None:
    for known in record.registrations:
        if (known.query, known.run, known.batch) != (wanted.query, wanted.run, wanted.batch):
            continue
        if known.epoch != wanted.epoch:
            raise Unsupported(
                f"the query loads subscription {registration.subscription} of {registration.topic} twice; give each"
                " load its own groupId, or load the topic once and use the DataFrame twice"
            )
        if known != wanted:
            raise Diverged(
                registration.topic, registration.subscription, "the batch was registered with another range before"
            )
    if record.epoch != wanted.epoch:
        what = f"subscription {registration.subscription} of {registration.topic}"
        raise Fenced(what, "a newer run, or a second load of the same groupId in this query")


async def load_registrations(store: IMetadataStore, facts: MicroBatch) -> tuple[Registration, ...]:
    """Return all registrations of the batch."""
    found: list[Registration] = []
    rest: IndexRange | KeyRange | None = index_keys.prefix_range(
        REGISTRATIONS_BY_BATCH, facts.query, facts.run, facts.batch
    )
    while isinstance(rest, IndexRange):
        page = await store.scan_index(rest, _PAGE)
        for stored in page.records:
            topic, subscription = paths.subscription_of(stored.key.path)
            record = records.decode(SubscriptionRecord, stored)
            for known in record.registrations:
                if (known.query, known.run, known.batch) == (facts.query, facts.run, facts.batch):
                    found.append(_decode(topic, subscription, known))
        rest = page.resume
    return tuple(found)


async def load_subscription(store: IMetadataStore, topic: str, subscription: str) -> tuple[int, SubscriptionRecord]:
    """Return the subscription's record and its version, or raise SubscriptionNotFound."""
    key: Key = paths.subscription_key(topic, subscription)
    stored = await store.get(key)
    if stored is None:
        raise SubscriptionNotFound(topic, subscription)
    record = records.decode(SubscriptionRecord, stored)
    if record.deleted:
        raise SubscriptionNotFound(topic, subscription)
    return stored.version, record


def _encode(facts: MicroBatch, registration: Registration) -> RegistrationDocument:
    return RegistrationDocument(
        query=facts.query,
        run=facts.run,
        batch=facts.batch,
        epoch=registration.epoch,
        start={found.segment: str(found.start) for found in registration.ranges},
        end={found.segment: str(found.end) for found in registration.ranges},
        incarnations={
            found.segment: found.incarnation for found in registration.ranges if found.incarnation is not None
        },
    )


def _decode(topic: str, subscription: str, known: RegistrationDocument) -> Registration:
    ends: Mapping[str, str] = known.end
    ranges = tuple(
        Range(topic, segment, Position.parse(start), Position.parse(ends[segment]), known.incarnations.get(segment))
        for segment, start in sorted(known.start.items())
    )
    return Registration(topic, subscription, known.epoch, ranges)


@dataclass(frozen=True, slots=True)
class Range:
    """The entries of one segment after ``start``, up to and including ``end``."""

    topic: str
    segment: str
    start: Position
    end: Position
    incarnation: int | None = None
