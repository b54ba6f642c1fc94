"""
The content of a notification: the records and ledgers that a commit changed, for the watches that must read again.

A payload is a hint that decides nothing: any login of the database may send one. It is a JSON list. A whole number in
it is the managed ledger of that id. A list ``[path, partition, entries, ...]`` is a record.

``partition`` may be null if it equals the path. Each ``entries`` is null or a list of ``[index name, index key in
hex]``, in the form stored in the record. They are the index entries before the change, and those after it. A payload
longer than PostgreSQL allows, or one that cannot be decoded, wakes every watch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256

import msgspec

from txnframework.model import IndexEntry
from txnframework_sql.steps.statements import Change, LedgerChange, RecordChange

ANYTHING_CHANGED = "*"
"""A payload that wakes every watch."""

BYTES_MAX = 7_999
"""The longest payload that PostgreSQL takes."""

PAYLOADS_MAX = 8
"""The maximum number of payloads of one notification; more are replaced by one that wakes every watch."""

_Pairs = list[tuple[str, str]]


def channel_of(token: str, schema: str) -> str:
    """
    Return the channel of the stores in one schema, whose tables hold ``token``.

    Channels belong to a database. The schema distinguishes its installations, even if one is a copy of another. Only
    users who may read the store can read the token, so others cannot guess the name.
    """
    return f"txnframework_{sha256(f'{token}/{schema}'.encode()).hexdigest()[:40]}"


def payloads(changes: Iterable[Change]) -> list[str]:
    """Return the payloads to notify of changes."""
    texts = [_text(change) for change in dict.fromkeys(changes)]
    found = list(_joined(texts)) if all(len(text.encode()) <= BYTES_MAX - 2 for text in texts) else [ANYTHING_CHANGED]
    return found if len(found) <= PAYLOADS_MAX else [ANYTHING_CHANGED]


def changes_of(payload: str) -> tuple[Change, ...] | None:
    """Return the changes that a payload names; None: anything may have changed."""
    if payload == ANYTHING_CHANGED:
        return None
    try:
        return tuple(_change(part) for part in msgspec.json.decode(payload, type=list[int | list[object]]))
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError):
        # Sent by a later release, or by another program.
        return None


def _joined(texts: list[str]) -> Iterator[str]:
    """Yield JSON lists, each with as many texts as fit."""
    part: list[str] = []
    size = 2
    for text in texts:
        text_bytes = len(text.encode()) + 1
        if part and size + text_bytes - 1 > BYTES_MAX:
            yield f"[{','.join(part)}]"
            part, size = [], 2
        part.append(text)
        size += text_bytes
    if part:
        yield f"[{','.join(part)}]"


def _text(change: Change) -> str:
    if not isinstance(change, RecordChange):
        return str(change.managed_id)
    pairs = [(entry.index, entry.key.hex()) for entry in sorted(change.indexes)]
    partition = None if change.partition == change.path else change.partition
    return msgspec.json.encode([change.path, partition, pairs] if pairs else [change.path, partition]).decode()


def _change(part: int | list[object]) -> Change:
    if isinstance(part, int):
        return LedgerChange(part)
    path, partition, *lists = part
    return RecordChange(
        msgspec.convert(path, str),
        msgspec.convert(partition, str | None) or msgspec.convert(path, str),
        frozenset(
            IndexEntry(name, bytes.fromhex(key))
            for pairs in msgspec.convert(lists, list[_Pairs | None])
            for name, key in pairs or ()
        ),
    )
