"""The explorer finds what goes wrong, by the shortest way."""

from __future__ import annotations

from collections.abc import Iterator

import exploring
import pytest
from exploring import explore


def counting(number: int) -> Iterator[tuple[str, int]]:
    if number < 10:
        yield "one more", number + 1
        yield "three more", number + 3


def test_the_story_is_the_shortest() -> None:
    found = explore(0, counting, lambda number: "seven" if number == 7 else None)

    assert (found.harm, sorted(found.story)) == ("seven", ["one more", "three more", "three more"])


def test_every_state_is_counted_once() -> None:
    assert explore(0, counting, lambda number: None) == (13, None, ())


def test_what_is_left_is_looked_at_where_no_step_leads_on() -> None:
    found = explore(0, counting, lambda number: None, left=lambda number: f"stopped at {number}")

    assert found.harm == "stopped at 10"


def test_the_start_may_be_wrong_already() -> None:
    assert explore(7, counting, lambda number: "seven") == (1, "seven", ())


def test_a_model_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exploring, "STATES_MAX", 100)

    with pytest.raises(OverflowError, match="more than 100 states"):
        explore(0, lambda number: [("one more", number + 1)], lambda number: None)
