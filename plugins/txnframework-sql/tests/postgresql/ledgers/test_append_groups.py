"""Which waiting appends go together; no server is asked."""

from __future__ import annotations

from collections.abc import Iterable

from txnframework.model import Append, ProducerSequence
from txnframework_sql.postgresql._appends import AppendCall, take_group

MANY = 1_000


def sent(*sequences: tuple[str, int, int] | None, size: int = 1) -> tuple[Append, ...]:
    """Entries with these sequences, one with none for each None."""
    return tuple(
        Append(b"x" * size, sequence=None if sequence is None else ProducerSequence(*sequence))
        for sequence in sequences
    )


def taken(
    calls: Iterable[tuple[tuple[Append, ...], int | None]],
    calls_max: int = MANY,
    bytes_max: int = MANY,
) -> int:
    return take_group([AppendCall(entries, ledger_id, 0) for entries, ledger_id in calls], calls_max, bytes_max)


def test_bounds() -> None:
    """So many calls and so many bytes go together at most, and always the first call."""
    calls = [(sent(None, size=100), None)] * 5
    assert taken(calls) == 5
    assert taken(calls, calls_max=3) == 3
    assert taken(calls, bytes_max=250) == 2
    assert taken(calls, bytes_max=1) == 1


def test_one_ledger_is_named() -> None:
    """Calls that name another ledger wait; those that name none go with any."""
    one = sent(None)
    assert taken([(one, None), (one, 7), (one, None), (one, 7), (one, 8)]) == 4
    assert taken([(one, 7), (one, 8)]) == 1


def test_nothing_overlaps() -> None:
    """A call whose sequences do not come after those before it, of the same producer, waits for their answer."""
    first = sent(("p", 0, 3), ("q", 9, 9))
    assert taken([(first, None), (sent(("p", 4, 4), ("q", 10, 12)), None)]) == 2
    assert taken([(first, None), (sent(("r", 0, 0)), None), (sent(("p", 3, 5)), None)]) == 2
    assert taken([(first, None), (sent(("q", 8, 8)), None)]) == 1


def test_decided_entry_by_entry() -> None:
    """A call that is out of order by itself, or has nothing in it, goes alone."""
    for entries in ((), sent(("p", 1, 1), ("p", 1, 1)), sent(("p", 2, 1))):
        assert taken([(entries, None), (sent(None), None)]) == 0
        assert taken([(sent(None), None), (entries, None)]) == 1
