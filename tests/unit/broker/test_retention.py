"""Which ledgers of a segment are retained."""

from __future__ import annotations

import pytest

from txnframework.broker.retention import SegmentFacts, done_through, first_to_keep
from txnframework.config import RetentionSection
from txnframework.model import LedgerSummary, Position
from txnframework.model.cursor import Cursor
from txnframework.model.entry_ranges import EntryRanges

NOW_MS = 1_000_000
DONE = Position(5, -1)


def _facts(**known: Position) -> SegmentFacts:
    """Four closed ledgers of two entries and 100 bytes, one appended to every 100 ms, and the open one."""
    ledgers = tuple(LedgerSummary(number, 2, 2, 100, NOW_MS - 500 + 100 * number) for number in (1, 2, 3, 4))
    return SegmentFacts(NOW_MS, (*ledgers, LedgerSummary(5, 0, 0, 0, 0)), **({"readable": DONE} | known))


def _rule(**limits: int) -> RetentionSection:
    return RetentionSection(**limits)


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({}, 1),
        ({"time_ms": 0}, 5),
        ({"bytes": 0}, 5),
        ({"time_ms": 300}, 3),
        ({"time_ms": 301}, 2),
        ({"bytes": 250}, 2),
        ({"bytes": 200}, 3),
        ({"time_ms": 300, "bytes": 0}, 5),
        ({"time_ms": 1_000, "bytes": 100}, 4),
    ],
)
def test_what_is_acknowledged_goes_by_age_or_by_size(limits: dict[str, int], kept: int) -> None:
    """By default nothing is removed; ledgers beyond a limit are, but at least the given number of bytes is retained."""
    assert first_to_keep(_facts(acknowledged=DONE), _rule(**limits)) == kept
    assert first_to_keep(_facts(), _rule(**limits)) == kept, "a topic without subscriptions follows retention alone"


@pytest.mark.parametrize("bound", ["readable", "acknowledged", "replayed", "compacted"])
@pytest.mark.parametrize(("at", "kept"), [(Position(1, 0), 1), (Position(1, 1), 2), (Position(2, 0), 2)])
def test_whole_ledgers_below_every_bound(bound: str, at: Position, kept: int) -> None:
    """An undecided, unacknowledged or replayable message retains its ledger and later ones."""
    assert first_to_keep(_facts(**{bound: at}), _rule(time_ms=0)) == kept
    assert first_to_keep(_facts(**{bound: at}), _rule(bytes=0)) == kept


def test_only_the_backlog_rule_passes_what_is_not_acknowledged() -> None:
    """Undecided messages are never removed, because they may still be committed."""
    behind = {"acknowledged": Position(1, 0), "replayed": Position(1, 0)}
    assert first_to_keep(_facts(**behind), _rule(backlog_time_ms=300)) == 3
    assert first_to_keep(_facts(**behind), _rule(backlog_time_ms=0)) == 5
    assert first_to_keep(_facts(readable=Position(2, 0), **behind), _rule(backlog_time_ms=0)) == 2


def test_unacknowledged_bytes_do_not_count_as_kept() -> None:
    """Otherwise, a backlog would use up the bytes that retention keeps after it."""
    assert first_to_keep(_facts(acknowledged=Position(2, 1)), _rule(bytes=100)) == 2
    assert first_to_keep(_facts(acknowledged=Position(2, 1)), _rule(bytes=101)) == 1


def test_an_entry_from_the_future_is_not_old() -> None:
    """The clocks of the store and of this host may differ."""
    facts = SegmentFacts(NOW_MS - 10_000, _facts().ledgers, DONE)
    assert first_to_keep(facts, _rule(time_ms=1)) == 1
    assert first_to_keep(facts, _rule(time_ms=0)) == 5


@pytest.mark.parametrize(
    ("mark", "deleted", "done"),
    [
        (Position(0, -1), (), Position(0, -1)),
        (Position(0, -1), ((1, 0, 1), (2, 0, 0), (3, 0, 0)), Position(2, 0)),
        (Position(1, 1), ((2, 0, 1), (3, 0, 1), (4, 0, 1)), Position(4, 1)),
        (Position(1, 0), ((2, 0, 1),), Position(1, 0)),
        (Position(1, 1), ((2, 1, 1),), Position(1, 1)),
        (Position(0, 7), ((1, 0, 0),), Position(1, 0)),
    ],
)
def test_acknowledged_one_by_one_over_several_ledgers(
    mark: Position, deleted: tuple[tuple[int, int, int], ...], done: Position
) -> None:
    """Entries of two ledgers are adjacent if no entry is between them."""
    ranges = EntryRanges.of((Position(ledger, first), Position(ledger, last)) for ledger, first, last in deleted)
    assert done_through(Cursor(1, mark, ranges), _facts().ledgers) == done
