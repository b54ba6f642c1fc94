"""The encoding of a ledger's state, with which an opener need not read the whole log."""

from __future__ import annotations

import msgspec

from txnframework.errors import Corrupt
from txnframework.model import Branch, Position, TxnID
from txnframework_nats.ledgers._records import Numbering
from txnframework_nats.ledgers._state import LedgerState, LedgerTotals, PackedTotals
from txnframework_nats.ledgers._windows import SequenceCopy, SequenceWindow

_Packed = tuple[int, int, int, int, str, int]
"""A copy: first, last, ledger id, entry id, transaction (empty without a branch), number of the branch."""


class _Snapshot(msgspec.Struct, frozen=True, array_like=True):
    name: str
    numbering: Numbering
    number: int
    sealed: bool
    deleted: bool
    before: tuple[int, int]
    trimmed: tuple[int, int, int, int] | None
    ledgers: list[PackedTotals]
    windows: dict[str, tuple[int, list[_Packed]]]


_decoder = msgspec.msgpack.Decoder(_Snapshot)


def encode_state(state: LedgerState) -> bytes:
    """Return the state as bytes."""
    trimmed = state.trimmed
    snapshot = (
        state.name,
        state.numbering,
        state.number,
        state.sealed,
        state.deleted,
        (state.before.ledger_id, state.before.entry_id),
        trimmed and (*_pair(trimmed[0]), *_pair(trimmed[1])),
        [one.pack() for one in state.ledgers],
        {
            producer: (window.appended_ms, [_pack(copy) for copy in window.copies])
            for producer, window in _sorted(state)
        },
    )
    return msgspec.msgpack.encode(snapshot)


def decode_state(encoded: bytes, window: int, what: str) -> LedgerState:
    """
    Return the state of a snapshot.

    :param window: how many sequences of a producer are remembered from here on.
    :raises Corrupt: it is damaged.
    """
    try:
        snapshot = _decoder.decode(encoded)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"the snapshot of {what} is damaged: {error}") from error
    state = LedgerState(window)
    state.name, state.numbering, state.number = snapshot.name, snapshot.numbering, snapshot.number
    state.sealed, state.deleted = snapshot.sealed, snapshot.deleted
    state.before = Position(*snapshot.before)
    if snapshot.trimmed is not None:
        state.trimmed = (Position(*snapshot.trimmed[:2]), Position(*snapshot.trimmed[2:]))
    state.ledgers = [LedgerTotals.unpack(fields) for fields in snapshot.ledgers]
    for producer, (appended_ms, copies) in snapshot.windows.items():
        state.windows[producer] = SequenceWindow(map(_unpack, copies), appended_ms)
    return state


def _sorted(state: LedgerState) -> list[tuple[str, SequenceWindow]]:
    return sorted(state.windows.items())


def _pair(position: Position) -> tuple[int, int]:
    return position.ledger_id, position.entry_id


def _pack(copy: SequenceCopy) -> _Packed:
    branch = copy.branch
    txn, number = ("", 0) if branch is None else (str(branch.txn_id), branch.number)
    return copy.first, copy.last, copy.position.ledger_id, copy.position.entry_id, txn, number


def _unpack(packed: _Packed) -> SequenceCopy:
    first, last, ledger_id, entry_id, txn, number = packed
    return SequenceCopy(first, last, Position(ledger_id, entry_id), Branch(TxnID.parse(txn), number) if txn else None)
