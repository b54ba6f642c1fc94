"""Which changes of a cursor are this process's own."""

from __future__ import annotations

from txnframework.broker.cursors import OwnWrites


def test_a_chain_of_own_writes_needs_no_look() -> None:
    """No refresh is needed while each own write replaces the one before, and the last one is stored."""
    own = OwnWrites()
    own.replacing(b"0", b"1")
    assert not own.are_all(b"1")
    own.begin_read()
    assert own.are_all(b"1")
    own.replacing(b"1", b"2")
    own.replacing(b"2", b"3")
    assert own.are_all(b"3")
    assert not own.are_all(b"1")
    assert not own.are_all(None)


def test_a_write_under_way() -> None:
    """During a write, the stored record is an own write or unknown to this process."""
    own = OwnWrites()
    own.replacing(b"0", b"1")
    own.begin_read()
    own.replacing(b"1", b"2")
    assert own.are_all(b"1")
    assert own.are_all(b"2")
    own.replacing(b"other", b"3")
    assert not own.are_all(b"other")


def test_what_others_wrote_in_between_is_not_forgotten() -> None:
    """A foreign write is noticed even if own writes follow it: only a refresh reads it."""
    own = OwnWrites()
    own.replacing(b"0", b"1")
    own.begin_read()
    own.replacing(b"other", b"2")
    own.replacing(b"2", b"3")
    assert not own.are_all(b"3")
    own.begin_read()
    assert own.are_all(b"3")


def test_a_write_that_was_refused_is_replaced_by_what_stood_there() -> None:
    """The next attempt names the stored record as another process's, also after a write that was never applied."""
    own = OwnWrites()
    own.replacing(b"0", b"1")
    own.begin_read()
    own.replacing(b"1", b"refused")
    own.replacing(b"other", b"2")
    assert not own.are_all(b"2")
