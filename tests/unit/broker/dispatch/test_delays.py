from __future__ import annotations

import pytest

from txnframework.broker.dispatch.ack_progress import AckProgress
from txnframework.broker.dispatch.deliveries import Deliveries, HeldMessage, MessageState
from txnframework.broker.dispatch.open_acks import OpenAcks
from txnframework.model import Ack, Branch, PendingAck, Position, State, TxnID
from txnframework.model.cursor import Cursor
from txnframework.model.delays import DELIVER_AT_HEADER, delayed_until, deliver_at_ms
from txnframework.model.entries import EntryMessage

CURSOR = Cursor(1, Position(0, -1))
NOTHING = OpenAcks({}, 1)
BRANCH = Branch(TxnID(0, 7))


def _at(entry: int) -> Position:
    return Position(1, entry, 0)


def _read(deliveries: Deliveries, entry: int, due_ms: int = 0, open_acks: OpenAcks = NOTHING) -> None:
    headers = delayed_until((), due_ms) if due_ms else ()
    deliveries.read(
        HeldMessage(_at(entry), 1, EntryMessage(None, b"value", headers, 0, 0), "p", None), CURSOR, open_acks
    )


def _waiting(deliveries: Deliveries) -> list[int]:
    return [one.position.entry_id for one in deliveries.candidates(99)]


@pytest.mark.parametrize(
    ("content", "expected"), [(b"17", 17), (b"", 0), (b"-1", 0), (b"soon", 0), (b"9" * 40, 0), (b"\xd9\xa1", 0)]
)
def test_the_header_is_a_time_or_is_ignored(content: bytes, expected: int) -> None:
    """Any program may write any header, so an invalid header must not stop a dispatch."""
    assert deliver_at_ms((("colour", b"red"), (DELIVER_AT_HEADER, content))) == expected


def test_a_later_delay_replaces_an_earlier_one() -> None:
    """Other headers are unchanged."""
    headers = delayed_until(delayed_until((("colour", b"red"),), 5), 7)
    assert headers == (("colour", b"red"), (DELIVER_AT_HEADER, b"7"))


def test_delayed_messages_wait_when_they_are_due() -> None:
    """A due message waits in reading order; messages behind a delayed one do not wait for it."""
    deliveries = Deliveries(delays=True)
    for entry, due_ms in ((1, 300), (2, 0), (3, 200)):
        _read(deliveries, entry, due_ms)
    assert (_waiting(deliveries), deliveries.delayed.count, deliveries.next_due_ms()) == ([2], 2, 200)
    assert deliveries.delayed.size_bytes == sum(deliveries.messages[_at(entry)].size_bytes for entry in (1, 3))
    deliveries.release_due(199)
    assert _waiting(deliveries) == [2]
    deliveries.release_due(200)
    assert (_waiting(deliveries), deliveries.next_due_ms()) == ([2, 3], 300)
    deliveries.release_due(1_000)
    assert (_waiting(deliveries), deliveries.delayed.count, deliveries.delayed.size_bytes) == ([1, 2, 3], 0, 0)
    assert deliveries.next_due_ms() is None


def test_without_delays_every_message_waits_at_once() -> None:
    """A type that keeps an order delivers delayed messages in order."""
    deliveries = Deliveries()
    _read(deliveries, 1, 300)
    assert _waiting(deliveries) == [1]


def test_a_delayed_message_can_be_acknowledged() -> None:
    """An acknowledged delayed message is not delivered when it is due; after an abort, it is delayed as before."""
    deliveries = Deliveries(delays=True)
    progress = AckProgress(deliveries)
    held = OpenAcks({BRANCH.txn_id: (PendingAck(BRANCH, Ack(Position(1, 1), 1), State.OPEN, 1),)}, 1)
    _read(deliveries, 1, 300, held)
    _read(deliveries, 2, 300)
    deliveries.forget(progress.begin_ack((_at(2),), None, cumulative=False))
    assert (deliveries.delayed.count, deliveries.delayed.size_bytes, deliveries.next_due_ms()) == (0, 0, None)
    progress.reconcile(CURSOR, NOTHING, progress.begin_refresh())
    assert deliveries.messages[_at(1)].state is MessageState.DELAYED
    assert (_waiting(deliveries), deliveries.delayed.count) == ([], 1)
    deliveries.release_due(300)
    assert (_waiting(deliveries), deliveries.delayed.count) == ([1], 0)
    assert deliveries.clear() == {_at(1)}
    assert deliveries.next_due_ms() is None
