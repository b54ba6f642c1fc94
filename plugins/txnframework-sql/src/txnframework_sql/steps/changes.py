"""What a committed write changed, and whom it concerns."""

from __future__ import annotations

from dataclasses import dataclass

from txnframework.model import IndexEntry, IndexRange, Key, KeyRange


@dataclass(frozen=True, slots=True)
class RecordChange:
    """A record was written or removed; ``indexes``: its index entries before and after."""

    path: str
    partition: str
    indexes: frozenset[IndexEntry]


@dataclass(frozen=True, slots=True)
class LedgerChange:
    """The tail of a managed ledger changed."""

    managed_id: int


Change = RecordChange | LedgerChange
Target = Key | KeyRange | IndexRange | LedgerChange
"""What can be watched; a ``LedgerChange`` is watched as itself."""


def partition_of(key: Key) -> str:
    """Return the partition in which a record stands; without one it is alone in one named as its path."""
    return key.partition or key.path


def concerns(target: Target, change: Change) -> bool:
    """Whether a watch on ``target`` is to be woken by ``change``."""
    if isinstance(target, LedgerChange):
        return target == change
    if not isinstance(change, RecordChange):
        return False
    if isinstance(target, Key):
        return (target.path, partition_of(target)) == (change.path, change.partition)
    if isinstance(target, KeyRange):
        # Text of Python sorts as its UTF-8 does.
        return target.start <= change.path < target.stop and target.partition in (None, change.partition)
    return any(entry.index == target.index and target.start <= entry.key < target.stop for entry in change.indexes)
