"""The acknowledgments that open transactions hold."""

from __future__ import annotations

import random

import pytest

from txnframework.broker.dispatch.open_acks import OpenAcks
from txnframework.model import Ack, Branch, PendingAck, Position, State, TxnID

MESSAGES = [Position(ledger, entry, index) for ledger in (1, 2) for entry in range(4) for index in range(3)]


@pytest.mark.parametrize("seed", range(40))
def test_every_held_message_is_in_a_range(seed: int) -> None:
    """Whole entries, messages of them, both kinds; and each range has a held message."""
    source = random.Random(seed)
    acks = []
    for at in source.sample(MESSAGES[:-3], source.randrange(4)):
        indexes = frozenset(source.sample(range(3), 2)) if source.random() < 0.3 else None
        position = at if indexes is None and source.random() < 0.5 else at.entry
        acks.append(Ack(position, 3, indexes, cumulative=indexes is None and source.random() < 0.3))
    pending = tuple(PendingAck(Branch(TxnID(0, 1)), ack, State.OPEN, 1) for ack in acks)
    found = OpenAcks({TxnID(0, 1): pending}, 1)
    held = [at for at in MESSAGES if found.holder(at) is not None]
    assert bool(held) is bool(acks)
    ranges = found.ranges()
    assert all(any(first <= at <= last for first, last in ranges) for at in held)
    assert all(any(first <= at <= last for at in held) for first, last in ranges)
