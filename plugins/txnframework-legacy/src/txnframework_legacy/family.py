"""The note in a topic's record that the topic was used in transactions of this family."""

from __future__ import annotations

from txnframework.errors import OutcomeUnknown, Unavailable, VersionMismatch
from txnframework.interfaces import IMetadataStore
from txnframework.model import Put
from txnframework.model.ids import LOG_FAMILY
from txnframework.model.layout import from_record, to_record, with_family
from txnframework.model.names import topic_of
from txnframework.model.paths import topic_key
from txnframework.model.records import TopicRecord, decode, encode


class FamilyNote:
    """
    The family note of one topic. A process checks it once.

    The note is stored before the first entry or acknowledgment of a transaction. Hosts without this family, or
    configured with another one, refuse the topic because of the note. Without it they would show open and aborted
    messages, and deliver messages whose acknowledgment is pending.
    """

    def __init__(self, store: IMetadataStore, segment: str, attempts_max: int) -> None:
        self._store = store
        self._topic = topic_of(segment)
        self._attempts_max = attempts_max
        self._stands = False

    async def put(self) -> None:
        """
        Add this family to the topic's record unless it is listed already. A topic without a record needs no note.

        :raises Unavailable: concurrent changes of the record exhausted the attempts.
        """
        if self._stands:
            return
        for _ in range(self._attempts_max):
            if await self._stands_now():
                self._stands = True
                return
        reason = f"the record of {self._topic} changed {self._attempts_max} times while it was being changed"
        raise Unavailable(reason)

    async def _stands_now(self) -> bool:
        record = await self._store.get(topic_key(self._topic))
        if record is None:
            return True
        layout = from_record(self._topic, decode(TopicRecord, record))
        if LOG_FAMILY in layout.families:
            return True
        try:
            await self._store.put(Put(record.key, encode(to_record(with_family(layout, LOG_FAMILY))), record.version))
        except (VersionMismatch, OutcomeUnknown):
            return False
        return True
