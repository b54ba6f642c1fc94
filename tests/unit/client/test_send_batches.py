from __future__ import annotations

import asyncio
from collections import deque

from txnframework.client._messages import MessageID
from txnframework.client._sends.batches import (
    OutgoingMessage,
    SendCall,
    SendQuota,
    claimed_sequences,
    divide,
    hash_of,
    size_of,
    take_batch,
)
from txnframework.model import Branch, Position, ProducerSequence, TxnID
from txnframework.model.entries import EntryMessage

BRANCH = Branch(TxnID(0, 1))


def _batches(
    *messages: tuple[int, Branch | None, bool], messages_max: int = 99, bytes_max: int = 10_000
) -> list[list[int]]:
    async def run() -> list[list[int]]:
        waiting = deque(
            OutgoingMessage(EntryMessage(None, b"x" * 100, (), number, 0), branch, chosen, SendCall(SendQuota(1), 1))
            for number, branch, chosen in messages
        )
        found = []
        while waiting:
            found.append([one.sequence_id for one in take_batch(waiting, messages_max, bytes_max)])
        return found

    return asyncio.run(run())


def test_neighbours_of_one_branch_share_an_entry() -> None:
    """Messages of one branch with another branch's between them do not share an entry."""
    batches = _batches((0, None, False), (1, None, False), (2, BRANCH, False), (3, None, False))
    assert batches == [[0, 1], [2], [3]]


def test_entries_are_bounded() -> None:
    """Entries are limited by messages and by bytes; a larger message has an entry of its own."""
    plain = [(number, None, False) for number in range(5)]
    assert _batches(*plain, messages_max=2) == [[0, 1], [2, 3], [4]]
    assert _batches(*plain, bytes_max=400) == [[0, 1], [2, 3], [4]]
    assert _batches(*plain, bytes_max=1) == [[0], [1], [2], [3], [4]]


def test_an_entry_claims_no_sequence_id_that_may_still_come() -> None:
    """Ids counted by the producer may have gaps, chosen ids may not; they always ascend."""
    assert _batches((0, None, False), (3, None, False)) == [[0, 3]]
    assert _batches((0, None, True), (1, None, True), (3, None, True)) == [[0, 1], [3]]
    assert _batches((5, None, True), (5, None, True), (4, None, True)) == [[5], [5], [4]]


async def test_a_batch_that_is_partly_stored_is_divided() -> None:
    """Messages of the earlier copy are confirmed, the rest is sent."""
    sending = SendCall(SendQuota(5), 5)
    batch = [
        OutgoingMessage(EntryMessage(None, b"", (), number, 0), None, False, sending, number) for number in range(5)
    ]
    assert claimed_sequences(batch, "p") == ProducerSequence("p", 0, 4)
    earlier, rest = divide(batch, ProducerSequence("p", 1, 2))
    assert [one.sequence_id for one in earlier] == [1, 2]
    assert [one.sequence_id for one in rest] == [0, 3, 4]
    batch[0].succeed(MessageID("s", Position(1, 1)))
    batch[0].fail(ValueError("too late"))
    assert sending.outcome(0) == MessageID("s", Position(1, 1))


def test_a_message_is_routed_by_its_key_or_by_its_number() -> None:
    """A repeated send is routed in the same way; an empty key is a key."""
    keyed = [hash_of(EntryMessage(b"k", b"", (), number, 0), name) for number, name in ((1, "p"), (2, "q"))]
    assert len(set(keyed)) == 1
    keyless = [hash_of(EntryMessage(None, b"", (), number, 0), name) for number, name in ((1, "p"), (1, "p"), (2, "p"))]
    assert keyless[0] == keyless[1] != keyless[2]
    assert hash_of(EntryMessage(b"", b"", (), 1, 0), "p") != keyless[0]


def test_sizes() -> None:
    """The size of a message includes all of its stored parts."""
    small, large = EntryMessage(None, b"", (), 0, 0), EntryMessage(b"kk", b"vvv", (("nn", b"h"),), 0, 0)
    assert size_of(large) == size_of(small) + 2 + 3 + 2 + 1
