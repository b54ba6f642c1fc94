"""The changes of a committed write, and the targets that they concern."""

from __future__ import annotations

from dataclasses import dataclass

from txnframework.model import IndexEntry, IndexRange, Key, KeyRange


@dataclass(frozen=True, slots=True)
class RecordChange:
    """A record was written or deleted; ``indexes``: its index entries before and after."""

    path: str
    partition: str
    indexes: frozenset[IndexEntry]


@dataclass(frozen=True, slots=True)
class LedgerChange:
    """The tail of a managed ledger changed."""

    managed_id: int


Change = RecordChange | LedgerChange
Target = Key | KeyRange | IndexRange | LedgerChange
"""The targets of watches; the target of a ``LedgerChange`` is an equal ``LedgerChange``."""


def partition_of(key: Key) -> str:
    """Return the partition of a record; a record without one is alone in a partition named like its path."""
    return key.partition or key.path


def concerns(target: Target, change: Change) -> bool:
    """Return whether ``change`` wakes a watch on ``target``."""
    if isinstance(target, LedgerChange):
        return target == change
    if not isinstance(change, RecordChange):
        return False
    if isinstance(target, Key):
        return (target.path, partition_of(target)) == (change.path, change.partition)
    if isinstance(target, KeyRange):
        # Python's text sorts like its UTF-8 form.
        return target.start <= change.path < target.stop and target.partition in (None, change.partition)
    return any(entry.index == target.index and target.start <= entry.key < target.stop for entry in change.indexes)
