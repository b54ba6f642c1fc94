"""The step of a store: one atomic write of records and entries."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

import msgspec

from txnframework.model.ledger import Append, Appended, Tail
from txnframework.model.metadata import Check, Delete, Expect, IndexEntry, IndexRange, Key, Put, PutSequential, Record
from txnframework.model.records import WriteOperation, encode


class Reach(IntEnum):
    """How wide the steps of a metadata store may be; each reach includes those before it."""

    PARTITION = 1
    """Records of one partition."""
    STORE = 2
    """Records of any partitions."""
    DATABASE = 3
    """Records of any partitions, entries of ledgers of the same database, and index ranges that must be vacant."""


class Intent(msgspec.Struct, frozen=True, gc=False):
    """
    The write operation that announces the entries of a branch.

    ``prefix`` and ``indexes`` are those of the operation's record. The step sets the ledger and the position in
    ``operation``, which are ignored here.
    """

    prefix: Key
    indexes: tuple[IndexEntry, ...]
    operation: WriteOperation

    def put_at(self, tail: Tail) -> PutSequential:
        """Return what writes the operation of entries that follow ``tail``."""
        ledger_id, after = tail.open_ledger_id, str(tail.last_confirmed)
        operation = msgspec.structs.replace(self.operation, ledger=ledger_id, after=after)
        return PutSequential(self.prefix, encode(operation), self.indexes)


class LedgerAppend(msgspec.Struct, frozen=True, gc=False):
    """
    Entries of one ledger in a step, adjacent and in order, for whichever of its ledgers is open.

    ``ledger``: the ``IManagedLedger.reference`` of a ledger of the same database.
    """

    ledger: object
    entries: tuple[Append, ...]
    intent: Intent | None = None


class Step(msgspec.Struct, frozen=True, gc=False):
    """
    One atomic write: all parts take effect, durably, or none does. Each may be empty.

    ``checks``, ``puts``, ``deletes``: at most one of them for any one key. ``appends``: at most one for each ledger,
    each with entries. ``vacant``: index ranges in which no record may have an entry. ``IMetadataStore.reach`` says
    which parts a store takes.

    A step with an intent has one append and one check, and nothing else; its entries may have sequences. In every other
    step with appends or vacant ranges no entry has a sequence, and no put is a PutSequential.
    """

    checks: tuple[Check, ...] = ()
    puts: tuple[Put | PutSequential, ...] = ()
    deletes: tuple[Delete, ...] = ()
    appends: tuple[LedgerAppend, ...] = ()
    vacant: tuple[IndexRange, ...] = ()

    @property
    def is_of_records(self) -> bool:
        """Whether a store of any reach may take it, if its keys have one partition."""
        return not self.appends and not self.vacant

    @property
    def intent(self) -> Intent | None:
        """The intent of its only append, if it has one."""
        return self.appends[0].intent if self.appends else None

    def keyed(self) -> tuple[Check | Put | Delete, ...]:
        """Return the parts whose keys are known before the step."""
        return (*self.checks, *[put for put in self.puts if isinstance(put, Put)], *self.deletes)


class Applied(msgspec.Struct, frozen=True, gc=False):
    """
    What a step has written.

    ``records``: those of its puts in their order, or that of its intent. ``appended``: for each append, what became of
    its entries, in their order.
    """

    records: tuple[Record, ...] = ()
    appended: tuple[tuple[Appended, ...], ...] = ()


def require_valid(step: Step, reach: Reach) -> None:
    """Raise ValueError for a step that no store takes, or that is wider than ``reach``."""
    if reach is Reach.PARTITION:
        partitions = {key.partition or key.path for key in _keys(step)}
        if len(partitions) > 1:
            raise ValueError(f"a step of this store is of one partition, and not of {sorted(partitions)}")
    keyed = step.keyed()
    if len(keyed) > 1 and len({(part.key.path, part.key.partition or part.key.path) for part in keyed}) < len(keyed):
        raise ValueError("a step has at most one part for any one key")
    if step.is_of_records:
        return
    if reach is not Reach.DATABASE:
        raise ValueError("a step of this store has no appends and no vacant ranges")
    has_intent = has_sequence = False
    for one in step.appends:
        if not one.entries:
            raise ValueError("an append of a step has at least one entry")
        has_intent = has_intent or one.intent is not None
        for entry in one.entries:
            has_sequence = has_sequence or entry.sequence is not None
    if has_intent:
        if (len(step.appends), len(step.checks), len(keyed), len(step.puts), len(step.vacant)) != (1, 1, 1, 0, 0):
            raise ValueError("a step with an intent has one append and one check, and nothing else")
    elif len(keyed) < len(step.checks) + len(step.puts) + len(step.deletes):
        raise ValueError("a step with appends or vacant ranges has no PutSequential")
    elif has_sequence:
        raise ValueError("a sequence needs an intent, or an append outside steps")
    if len(step.appends) > 1 and len({one.ledger for one in step.appends}) < len(step.appends):
        raise ValueError("a step has the entries of one ledger in one place")


def require_decided(step: Step) -> None:
    """Raise ValueError for a step that cannot be made with rows of an application: its first put decides both."""
    puts = [put for put in step.puts if isinstance(put, Put)]
    if step.intent is not None or len(puts) < len(step.puts) or not puts or puts[0].expected is Expect.ANY:
        raise ValueError(
            "a step with rows first puts a record that must be absent or have a version, and has no intent and no"
            " PutSequential"
        )


def _keys(step: Step) -> Iterator[Key]:
    yield from (part.key for part in step.keyed())
    yield from (put.prefix for put in step.puts if isinstance(put, PutSequential))
