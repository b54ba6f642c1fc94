"""Names and deletion of the ledgers that the family keeps beside a topic."""

from __future__ import annotations

from txnframework.interfaces import ILedgerStore, IMetadataStore
from txnframework.model.names import topic_of
from txnframework.model.paths import escape, topic_key, unescape
from txnframework.model.records import TopicRecord, decode

SNAPSHOTS = "marker-snapshots"
ABORTED_SEGMENTS = "marker-segments"
PENDING_ACKS = "pending-acks"
SIDECAR = "sidecar"
KINDS = (SNAPSHOTS, ABORTED_SEGMENTS, PENDING_ACKS, SIDECAR)
"""The kinds of ledgers beside a topic. The last one is for buffers of other distributions that use this coordinator."""
NAMES_MAX = 100


def ledger_name(kind: str, segment: str, life: int, name: str = "") -> str:
    """
    Return the name of a ledger beside a topic or segment, in the ``life`` of the topic; no topic can have such a name.

    The name is never used again: a topic that is recreated under the same name begins a new life.
    """
    return f"{kind}:{escape(segment)}/{life}/{escape(name)}"


def parse_ledger_name(name: str) -> tuple[str, int, str]:
    """Return the segment, the life and the own name from the name of a ledger beside a topic."""
    segment, life, own = name.partition(":")[2].split("/")
    return unescape(segment), int(life), unescape(own)


async def delete_topic_ledgers(store: IMetadataStore, ledgers: ILedgerStore, segment: str) -> None:
    """
    Delete the ledgers beside a segment, except those of an existing topic. Idempotent, from any process.

    The topic's life is read before the deletions. A process that is paused here and resumes after the topic was
    recreated therefore keeps the ledgers of the new topic.
    """
    present = await _present_life(store, segment)
    for kind in KINDS:
        prefix, after = f"{kind}:{escape(segment)}/", ""
        while names := await ledgers.list_names(prefix, after, NAMES_MAX):
            for name in names:
                if present is None or parse_ledger_name(name)[1] < present:
                    await ledgers.delete(name, None)
            after = names[-1]


async def _present_life(store: IMetadataStore, segment: str) -> int | None:
    """Return the first life whose ledgers are kept; None if the segment belongs to no topic with a record."""
    topic = topic_of(segment)
    record = await store.get(topic_key(topic)) if segment == str(topic) else None
    if record is None:
        return None
    found = decode(TopicRecord, record)
    return found.life + 1 if found.deleted else found.life
