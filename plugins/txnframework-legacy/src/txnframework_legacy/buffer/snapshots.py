"""What was found in a topic, written down beside it, so that opening it does not read it from the beginning."""

from __future__ import annotations

import msgspec

from txnframework.errors import CorruptEntry, EntryTrimmed, LedgerNotFound
from txnframework.interfaces import ILedgerStore, IManagedLedger
from txnframework.model import Append, Branch, EntryRange, LedgerEntry, Limit, Position, TxnID
from txnframework.model.paths import escape
from txnframework_legacy.buffer.markers import Marker
from txnframework_legacy.buffer.states import TopicState, Writing
from txnframework_legacy.log.format import decode_entry, encode_plain


class WritingDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An open transaction's entries."""

    first: str
    branches: dict[str, str]


class Snapshot(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A topic's state: transactions by their ids, branches as ``transaction:number``, positions as ``ledger:entry``."""

    upto: str
    writing: dict[str, WritingDocument]
    marked: dict[str, list[int]]
    aborted: dict[str, str]
    late: dict[str, str]


def snapshots_name(segment: str) -> str:
    """Return the name of the ledger that holds a topic's snapshots: no topic can have such a name."""
    return f"marker-snapshots:{escape(segment)}"


class Snapshots:
    """The snapshots of one topic; the last one counts, and older ones are trimmed."""

    def __init__(self, ledgers: ILedgerStore, segment: str) -> None:
        self._ledgers = ledgers
        self._name = snapshots_name(segment)
        self._ledger: IManagedLedger | None = None

    async def last(self) -> TopicState | None:
        """Return what was written down last; None: nothing was."""
        try:
            self._ledger = self._ledger or await self._ledgers.open(self._name)
        except LedgerNotFound:
            return None
        while True:
            last = (await self._ledger.tail()).last_confirmed
            if last.entry_id < 0:
                return None
            before = Position(last.ledger_id, last.entry_id - 1)
            try:
                found = await self._ledger.read(EntryRange(before, last), Limit(1))
            except EntryTrimmed:
                continue  # somebody has written another one, and trimmed this one
            return _state_of(found[0], self._name) if found else None

    async def write(self, state: TopicState) -> None:
        """Write a state down, and trim what was written before."""
        data = encode_plain(msgspec.json.encode(_snapshot_of(state)))
        self._ledger = self._ledger or await self._ledgers.create(self._name)
        tail = await self._ledger.roll()
        (appended,) = await self._ledger.append((Append(data),), None)
        if appended.position.ledger_id >= tail.open_ledger_id:
            await self._ledger.trim(appended.position.ledger_id, frozenset())

    async def close(self) -> None:
        """Let the ledger go."""
        if self._ledger is not None:
            await self._ledger.close()


def _snapshot_of(state: TopicState) -> Snapshot:
    return Snapshot(
        upto=str(state.upto),
        writing={
            str(txn): WritingDocument(
                first=str(one.first), branches={str(number): str(last) for number, last in one.branches.items()}
            )
            for txn, one in state.writing.items()
        },
        marked={str(txn): sorted(marker.branches) for txn, marker in state.marked.items()},
        aborted={_text_of(branch): str(last) for branch, last in state.aborted.items()},
        late={str(at): _text_of(branch) for at, branch in state.late.items()},
    )


def _state_of(entry: LedgerEntry, name: str) -> TopicState:
    (data,) = decode_entry(entry, name)
    try:
        found = msgspec.json.decode(data, type=Snapshot)
        return TopicState(
            Position.parse(found.upto),
            {
                TxnID.parse(txn): Writing(
                    Position.parse(one.first), {int(number): Position.parse(at) for number, at in one.branches.items()}
                )
                for txn, one in found.writing.items()
            },
            {TxnID.parse(txn): Marker(TxnID.parse(txn), frozenset(some)) for txn, some in found.marked.items()},
            {_branch_of(text): Position.parse(last) for text, last in found.aborted.items()},
            {Position.parse(at): _branch_of(text) for at, text in found.late.items()},
        )
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptEntry(entry.position, f"it is no snapshot: {error}", name) from error


def _text_of(branch: Branch) -> str:
    return f"{branch.txn_id}:{branch.number}"


def _branch_of(text: str) -> Branch:
    txn, _, number = text.partition(":")
    return Branch(TxnID.parse(txn), int(number))
