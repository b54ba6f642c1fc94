"""The grouping of waiting appends; no server is used."""

from __future__ import annotations

from collections.abc import Iterable

from txnframework.model import Append, ProducerSequence
from txnframework_sql.postgresql._append_columns import AppendCall, group_size

MANY = 1_000


def sent(*sequences: tuple[str, int, int] | None, size: int = 1) -> tuple[Append, ...]:
    """Return entries with these sequences; None gives an entry without a sequence."""
    return tuple(
        Append(b"x" * size, sequence=None if sequence is None else ProducerSequence(*sequence))
        for sequence in sequences
    )


def taken(
    calls: Iterable[tuple[tuple[Append, ...], int | None]],
    calls_max: int = MANY,
    bytes_max: int = MANY,
) -> int:
    return group_size([AppendCall(entries, ledger_id, 0) for entries, ledger_id in calls], calls_max, bytes_max)


def test_bounds() -> None:
    """A group is limited by calls and by bytes, and always contains the first call."""
    calls = [(sent(None, size=100), None)] * 5
    assert taken(calls) == 5
    assert taken(calls, calls_max=3) == 3
    assert taken(calls, bytes_max=250) == 2
    assert taken(calls, bytes_max=1) == 1


def test_one_ledger_is_named() -> None:
    """A call that names another ledger is not in the group; a call without a ledger fits any group."""
    one = sent(None)
    assert taken([(one, None), (one, 7), (one, None), (one, 7), (one, 8)]) == 4
    assert taken([(one, 7), (one, 8)]) == 1


def test_nothing_overlaps() -> None:
    """A call whose sequences are not above the earlier ones of the same producer is not in the group."""
    first = sent(("p", 0, 3), ("q", 9, 9))
    assert taken([(first, None), (sent(("p", 4, 4), ("q", 10, 12)), None)]) == 2
    assert taken([(first, None), (sent(("r", 0, 0)), None), (sent(("p", 3, 5)), None)]) == 2
    assert taken([(first, None), (sent(("q", 8, 8)), None)]) == 1


def test_decided_entry_by_entry() -> None:
    """A call with unordered sequences, or without entries, is sent alone."""
    for entries in ((), sent(("p", 1, 1), ("p", 1, 1)), sent(("p", 2, 1))):
        assert taken([(entries, None), (sent(None), None)]) == 0
        assert taken([(sent(None), None), (entries, None)]) == 1
