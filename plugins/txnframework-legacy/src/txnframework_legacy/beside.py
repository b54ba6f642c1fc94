"""The ledgers that the family keeps beside a topic: what they are called, and how they go with it."""

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
"""What can stand beside a topic; the last one is for buffers of other distributions that use this coordinator."""
NAMES_MAX = 100


def beside(kind: str, segment: str, life: int, name: str = "") -> str:
    """
    Return the name of a ledger beside a topic or segment, in the ``life`` of the topic; no topic can have such a name.

    It does not return: the next topic of that name has another life.
    """
    return f"{kind}:{escape(segment)}/{life}/{escape(name)}"


def what_of(name: str) -> tuple[str, int, str]:
    """Return the segment, the life and the name that the name of a ledger beside a topic was made of."""
    segment, life, own = name.partition(":")[2].split("/")
    return unescape(segment), int(life), unescape(own)


async def forget_beside(store: IMetadataStore, ledgers: ILedgerStore, segment: str) -> None:
    """
    Delete the ledgers beside a segment, but those of a topic that is there; idempotent, from any process.

    Which topic that is is asked before: so whoever is paused here, and goes on when the name has returned, leaves
    alone what belongs to the one that has it now.
    """
    present = await _present_life(store, segment)
    for kind in KINDS:
        prefix, after = f"{kind}:{escape(segment)}/", ""
        while names := await ledgers.list_names(prefix, after, NAMES_MAX):
            for name in names:
                if present is None or what_of(name)[1] < present:
                    await ledgers.delete(name, None)
            after = names[-1]


async def _present_life(store: IMetadataStore, segment: str) -> int | None:
    """Return from which life of a topic's name on its segment is kept; None: in none, or it has no such name."""
    topic = topic_of(segment)
    record = await store.get(topic_key(topic)) if segment == str(topic) else None
    if record is None:
        return None
    found = decode(TopicRecord, record)
    return found.life + 1 if found.deleted else found.life
