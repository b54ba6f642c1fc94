"""Which waiting appends go together; no server is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

import pytest

from txnframework.model import Append, ProducerSequence
from txnframework_sql.postgresql._append_groups import Waiting, take_group

MANY = 1_000


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    one = asyncio.new_event_loop()
    yield one
    one.close()


def sent(*sequences: tuple[str, int, int] | None, size: int = 1) -> tuple[Append, ...]:
    """Entries with these sequences, one with none for each None."""
    return tuple(
        Append(b"x" * size, sequence=None if sequence is None else ProducerSequence(*sequence))
        for sequence in sequences
    )


def taken(
    loop: asyncio.AbstractEventLoop,
    calls: Iterable[tuple[tuple[Append, ...], int | None]],
    calls_max: int = MANY,
    bytes_max: int = MANY,
) -> int:
    waiting = [Waiting(entries, ledger_id, 0, loop.create_future()) for entries, ledger_id in calls]
    return take_group(waiting, calls_max, bytes_max)


def test_bounds(loop: asyncio.AbstractEventLoop) -> None:
    """Together go so many calls and so many bytes at most, and always the first."""
    calls = [(sent(None, size=100), None)] * 5
    assert taken(loop, calls) == 5
    assert taken(loop, calls, calls_max=3) == 3
    assert taken(loop, calls, bytes_max=250) == 2
    assert taken(loop, calls, bytes_max=1) == 1


def test_one_ledger_is_named(loop: asyncio.AbstractEventLoop) -> None:
    """Calls that name another ledger wait; those that name none go with any."""
    one = sent(None)
    assert taken(loop, [(one, None), (one, 7), (one, None), (one, 7), (one, 8)]) == 4
    assert taken(loop, [(one, 7), (one, 8)]) == 1


def test_nothing_overlaps(loop: asyncio.AbstractEventLoop) -> None:
    """A call whose sequences do not come after those before it, of the same producer, waits for their answer."""
    first = sent(("p", 0, 3), ("q", 9, 9))
    assert taken(loop, [(first, None), (sent(("p", 4, 4), ("q", 10, 12)), None)]) == 2
    assert taken(loop, [(first, None), (sent(("r", 0, 0)), None), (sent(("p", 3, 5)), None)]) == 2
    assert taken(loop, [(first, None), (sent(("q", 8, 8)), None)]) == 1


def test_decided_entry_by_entry(loop: asyncio.AbstractEventLoop) -> None:
    """A call that is out of order by itself, or has nothing in it, goes alone."""
    for entries in ((), sent(("p", 1, 1), ("p", 1, 1)), sent(("p", 2, 1))):
        assert taken(loop, [(entries, None), (sent(None), None)]) == 0
        assert taken(loop, [(sent(None), None), (entries, None)]) == 1
