"""Which changes of a cursor are this process's own."""

from __future__ import annotations

from txnframework.broker.cursors import OwnWrites


def test_a_chain_of_own_writes_needs_no_look() -> None:
    """From the first look on, as long as each replaces the one before it, and the last one stands."""
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
    """What it replaces is still stored: an own write, or what this process does not know."""
    own = OwnWrites()
    own.replacing(b"0", b"1")
    own.begin_read()
    own.replacing(b"1", b"2")
    assert own.are_all(b"1")
    assert own.are_all(b"2")
    own.replacing(b"other", b"3")
    assert not own.are_all(b"other")


def test_what_others_wrote_in_between_is_not_forgotten() -> None:
    """Not even where own writes follow it: only a look takes it in."""
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
