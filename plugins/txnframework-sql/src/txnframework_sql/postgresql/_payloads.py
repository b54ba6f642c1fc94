"""
What a notification says: which changes a commit made, as JSON, so that a SQL function can write it, too.

A payload is a list of changes. A whole number is the managed ledger of that id, whose tail changed. A list
``[number, ledger id, entry id, data, ...]`` says that it changed only by these entries, from the entry id on; their
data is in base64. A list
``[path, partition, entries, ...]`` is a record; ``partition`` may be null if it is the path, and each ``entries`` is
null or a list of ``[index name, index key in hex]``, as the record keeps them: those before the change, and those after
it. A text behind them is the value that was written, so that whoever waits for it need not read it. What is longer than
PostgreSQL allows, and everything that is not understood, wakes everybody.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from txnframework.model import IndexEntry
from txnframework_sql.steps.changes import Change, EntriesChange, LedgerChange, RecordChange

CHANNEL = "txnframework"
"""The channel of every store in one database."""

EVERYBODY = "*"
"""A payload that wakes every watch."""

BYTES_MAX = 7_999
"""The longest payload that PostgreSQL takes."""

PAYLOADS_MAX = 8
"""How many payloads one commit sends at most, instead of one that wakes everybody."""

VALUE_BYTES_MAX = 1_024
"""Up to so many bytes of a value, or of the entries of one append, are told with the change."""

_Pairs = list[tuple[str, str]]


def payloads(changes: Iterable[Change]) -> list[str]:
    """Return what to notify of changes on CHANNEL, in the transaction that makes them."""
    texts = [_text(change) for change in dict.fromkeys(changes)]
    found = list(_joined(texts)) if all(len(text.encode()) <= BYTES_MAX - 2 for text in texts) else [EVERYBODY]
    return found if len(found) <= PAYLOADS_MAX else [EVERYBODY]


def changes_of(payload: str) -> tuple[Change, ...] | None:
    """Return what a payload says; None: anything may have changed."""
    if payload == EVERYBODY:
        return None
    try:
        return tuple(_change(part) for part in msgspec.json.decode(payload, type=list[int | list[object]]))
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError):
        # Of a later release, or of somebody else.
        return None


def told_value(value: bytes) -> str | None:
    """Return what a payload says of a value; None: it is too large to be told, or no text."""
    try:
        return msgspec.json.encode(bytes(value).decode()).decode() if len(value) <= VALUE_BYTES_MAX else None
    except UnicodeDecodeError:
        return None


def told_entries(datas: Sequence[bytes]) -> str | None:
    """Return what a payload says of entries behind where they stand; None: they are too large to be told."""
    if sum(map(len, datas)) > VALUE_BYTES_MAX or len(datas) > VALUE_BYTES_MAX // 16:
        return None
    return ",".join(f'"{b64encode(data).decode()}"' for data in datas)


def _joined(texts: list[str]) -> Iterator[str]:
    """Yield lists of as many texts each as fit."""
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
    if part and isinstance(part[0], int):
        managed_id, ledger_id, entry_id, *datas = part
        numbers = msgspec.convert((managed_id, ledger_id, entry_id), tuple[int, int, int])
        return EntriesChange(
            *numbers, tuple(b64decode(data, validate=True) for data in msgspec.convert(datas, list[str]))
        )
    path, partition, *lists = part
    value = lists.pop() if lists and isinstance(lists[-1], str) else None
    entries = msgspec.convert(lists, list[_Pairs | None])
    return RecordChange(
        msgspec.convert(path, str),
        msgspec.convert(partition, str | None) or msgspec.convert(path, str),
        frozenset(IndexEntry(name, bytes.fromhex(key)) for pairs in entries for name, key in pairs or ()),
        value.encode() if isinstance(value, str) else None,
        bool(entries and entries[0]),
    )
