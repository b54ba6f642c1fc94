"""Ids that a Pulsar client can hold: of messages, and of transactions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from txnframework.client import MessageID
from txnframework.errors import InvalidInput
from txnframework.model.ids import TxnID
from txnframework.model.names import ONLY_SEGMENT_ID, SegmentName, parse_name
from txnframework.model.positions import Position
from txnframework_pulsar.wire import messages_pb2 as pb

INDEX_BITS = 20
ENTRY_BITS = 43
LEDGER_BITS = 40
SEGMENT_BITS = 23
COUNTER_BITS = 47
"""With the 16 bits of a coordinator 63: clients leave out the id of a transaction that is negative to them."""
INT64_MAX = 2**63 - 1
SEGMENTS_REMEMBERED = 4_096
"""Of so many segments the number is known; it is asked for with each message."""
UINT64 = 2**64


@dataclass(frozen=True, slots=True)
class SegmentPosition:
    """A message, or with index -1 the place before all messages of its entry, by the number of its segment."""

    segment_id: int
    position: Position


@lru_cache(maxsize=SEGMENTS_REMEMBERED)
def segment_id_of(segment: str) -> int:
    """Return the number of a segment within its topic; a persistent topic has one segment."""
    name = parse_name(segment)
    return name.segment_id if isinstance(name, SegmentName) else ONLY_SEGMENT_ID


def pulsar_id(message: MessageID) -> pb.MessageId | None:
    """
    Return the id of a message in Pulsar's form.

    None: the message gets its position when its transaction commits, or a number does not fit (``INDEX_BITS`` and so
    on).
    """
    at, segment_id, index = message.position, segment_id_of(message.segment), max(message.position.batch_index, 0)
    fits = index >> INDEX_BITS == 0 and at.entry_id >> ENTRY_BITS == 0 and at.ledger_id >> LEDGER_BITS == 0
    if not fits or segment_id >> SEGMENT_BITS:
        return None
    ledger_id = segment_id << LEDGER_BITS | at.ledger_id
    return pb.MessageId(ledger_id=ledger_id, entry_id=at.entry_id << INDEX_BITS | index, partition=-1)


def place_of(given: pb.MessageId) -> SegmentPosition | str:
    """
    Return what an id of a Pulsar client names, or ``earliest`` or ``latest``.

    A client that has sent a batch counts its messages from the id in the receipt, by the batch index.
    """
    ledger_id, entry_id = _signed(given.ledger_id), _signed(given.entry_id)
    if ledger_id < 0:
        return "earliest"
    if ledger_id == INT64_MAX:
        return "latest"
    segment_id, in_segment = ledger_id >> LEDGER_BITS, ledger_id & (1 << LEDGER_BITS) - 1
    if entry_id < 0:
        return SegmentPosition(segment_id, Position(in_segment, 0, -1))
    index = (entry_id & (1 << INDEX_BITS) - 1) + max(given.batch_index, 0)
    return SegmentPosition(segment_id, Position(in_segment, entry_id >> INDEX_BITS, index))


def _signed(number: int) -> int:
    return number - UINT64 if number > INT64_MAX else number


def txn_bits(txn_id: TxnID) -> tuple[int, int]:
    """
    Return the most and the least significant 64 bits of a transaction id in Pulsar's form.

    The most significant ones are the number of the coordinator that clients ask, and the gateway has one.

    :raises InvalidInput: the id has a number that does not fit.
    """
    if txn_id.number >> COUNTER_BITS:
        raise InvalidInput(f"the number of transaction {txn_id} has more than {COUNTER_BITS} bits")
    return 0, txn_id.coordinator << COUNTER_BITS | txn_id.number


def txn_of(most: int, least: int) -> TxnID | None:
    """Return the transaction of an id in Pulsar's form; None: the gateway gave no such id."""
    if most != 0 or not 0 <= least <= INT64_MAX:
        return None
    return TxnID(least >> COUNTER_BITS, least & (1 << COUNTER_BITS) - 1)
