"""The histories of subscriptions, as stored: concurrent settlements of one subscription share a write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from txnframework.broker.batch_history import with_processed
from txnframework.broker.coordination import expected_version, update_record
from txnframework.interfaces import IMetadataStore
from txnframework.model import paths, records
from txnframework.model.acks import ProcessedRange
from txnframework.model.indexes import subscription_indexes
from txnframework.model.metadata import Key, Put, Record
from txnframework.runtime.call_groups import Answers, CallGroups, GroupRules

_RANGES_TOGETHER_MAX: Final = 1_000
_SUBSCRIPTIONS_TOGETHER_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class _Settled:
    """A range of a segment that a batch acknowledged, and the key of the subscription's record."""

    key: Key
    segment: str
    processed: ProcessedRange


_RULES: Final[GroupRules[_Settled]] = GroupRules(
    joins=lambda one, first: one.key == first.key,
    size=lambda _: 1,
    size_max=_RANGES_TOGETHER_MAX,
    what="a range of a subscription's history",
    groups_max=_SUBSCRIPTIONS_TOGETHER_MAX,
)


class Histories:
    """
    Adds the ranges that batches acknowledged to the histories of their subscriptions.

    A batch acknowledges a range on each segment, and all of them belong into one record. Each range alone would be a
    write of the whole record, and all but one of the concurrent writes would be refused.
    """

    def __init__(self, store: IMetadataStore) -> None:
        self._store = store
        self._groups: CallGroups[_Settled] = CallGroups(self._add, _RULES)

    async def add(self, topic: str, subscription: str, segment: str, processed: ProcessedRange) -> None:
        """
        Add a range; it is durable on return. The call may be repeated, also after an error.

        :raises Unavailable: the store is unavailable; nothing was written.
        :raises OutcomeUnknown: the range may be written.
        """
        await self._groups.add(_Settled(paths.subscription_key(topic, subscription), segment, processed))

    async def _add(self, ranges: list[_Settled]) -> Answers:
        async def decide(record: Record | None) -> Put | None:
            before = (
                records.SubscriptionRecord() if record is None else records.decode(records.SubscriptionRecord, record)
            )
            after = before
            for one in ranges:
                after = with_processed(after, one.segment, one.processed) or after
            if after is before:
                return None
            return Put(key, records.encode(after), expected_version(record), subscription_indexes(after))

        key = ranges[0].key
        await update_record(self._store, key, decide)
        return [None] * len(ranges)
