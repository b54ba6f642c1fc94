"""Layout records of topics."""

from __future__ import annotations

from functools import lru_cache

from txnframework.errors import OutcomeUnknown, TopicNotFound, Unavailable, VersionMismatch
from txnframework.interfaces import IMetadataStore
from txnframework.model import paths, records
from txnframework.model.layout import Layout, from_record, to_record
from txnframework.model.metadata import Expected, Put, Record
from txnframework.model.names import TopicName
from txnframework.model.topic_migration import MigrationStep

DECODED_MAX = 32
"""The most layouts that are kept after they were decoded."""


@lru_cache(DECODED_MAX)
def _decoded(topic: TopicName, value: bytes) -> Layout:
    """
    Return the layout that a record's value holds; an equal value is decoded once.

    Opening a topic's segments reads its record several times for each of them. A layout is immutable, and depends on
    nothing else, so that all readers may have the same one.
    """
    return from_record(topic, records.decode(records.TopicRecord, Record(paths.topic_key(topic), value, 0)))


class StoredLayouts:
    """Reads and writes layouts; a change is written only if the layout has not changed since it was read."""

    def __init__(self, store: IMetadataStore) -> None:
        self._store = store

    async def load(self, topic: TopicName) -> tuple[Layout, int]:
        """
        Return the layout and its version; of a topic that has migrated, those of the topic that it has become by now.

        :raises TopicNotFound: the topic does not exist.
        """
        found = await self.find(topic)
        if found is not None and found[0].moved_to is not None:
            found = await self.find(found[0].moved_to)
        if found is None or found[0].deleted:
            raise TopicNotFound(str(topic), deleted=found is not None)
        return found

    async def find(self, topic: TopicName) -> tuple[Layout, int] | None:
        """
        Return the layout and its version, also of a deleted topic.

        None: no topic ever had this name.
        """
        record = await self._store.get(paths.topic_key(topic))
        if record is None:
            return None
        return _decoded(topic, record.value), record.version

    async def owner(self, topic: TopicName) -> Layout | None:
        """
        Return the layout of the topic to which the segments with a topic's name belong; None: it has no record.

        This is the topic itself unless it has migrated. The new topic's record decides, so that the new topic can be
        used before the old record refers to it.
        """
        found = await self.find(topic)
        if found is None:
            return None
        layout, migration = found[0], found[0].migration
        if migration is None or migration.step is MigrationStep.PLANNED:
            return layout
        after = await self.find(migration.to)
        return after[0] if after is not None and after[0].continues(layout) else layout

    async def put(self, layout: Layout, expected: Expected) -> None:
        """Write the layout; errors are those of the store's ``put``."""
        await self._store.put(Put(paths.topic_key(layout.topic), records.encode(to_record(layout)), expected))

    async def put_if(self, layout: Layout, version: int) -> bool:
        """
        Write the layout unless it changed; return False also if the outcome is unknown, so that the caller reads it
        again.
        """
        try:
            await self.put(layout, version)
        except (VersionMismatch, OutcomeUnknown):
            return False
        return True


def too_many_conflicts(topic: TopicName, attempts: int) -> Unavailable:
    """Return the error of an update that exhausted its retries."""
    return Unavailable(f"the layout of {topic} changed {attempts} times while it was being changed")


def may_be_completed(what: str, error: Unavailable) -> OutcomeUnknown:
    """
    Return the error of a call that failed after its decision: any process may complete it at any time.

    Unavailable would say that nothing was changed. ``what`` is a sentence about the decision.
    """
    return OutcomeUnknown(f"{what}, and the rest of the call could not be carried out yet: {error}")
