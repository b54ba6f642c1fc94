"""The note in a topic's record that tells hosts without this family that acknowledgments may be recorded here."""

from __future__ import annotations

from txnframework.errors import OutcomeUnknown, Unavailable, VersionMismatch
from txnframework.interfaces import IMetadataStore
from txnframework.model import Put
from txnframework.model.ids import LOG_FAMILY
from txnframework.model.layout import from_record, to_record, with_family
from txnframework.model.names import TopicName
from txnframework.model.paths import topic_key
from txnframework.model.records import TopicRecord, decode, encode


async def note_family(store: IMetadataStore, topic: TopicName, attempts_max: int) -> None:
    """
    Let the topic's record name this family; before the first acknowledgment is recorded, never after.

    A host that does not have the family would hand out what is held here. A topic without a record is nobody's.

    :raises Unavailable: others changed the record all the time.
    """
    for _ in range(attempts_max):
        record = await store.get(topic_key(topic))
        if record is None:
            return
        layout = from_record(topic, decode(TopicRecord, record))
        if LOG_FAMILY in layout.families:
            return
        try:
            await store.put(Put(record.key, encode(to_record(with_family(layout, LOG_FAMILY))), record.version))
        except (VersionMismatch, OutcomeUnknown):
            continue
        return
    raise Unavailable(f"the record of {topic} changed {attempts_max} times while it was being changed")
