"""Which units are hidden: exhaustively compared with the definition, on small random histories."""

from __future__ import annotations

import random

import pytest

from txnframework.model.ids import TxnID
from txnframework_geo._lanes import Lanes, Unit

UNITS = [TxnID(1, number) for number in range(6)]


def by_definition(lanes: dict[str, list[Unit]], seeds: set[Unit]) -> set[Unit]:
    """Hide everything behind a hidden unit, again and again, until nothing more is hidden."""
    hidden = set(seeds)
    while True:
        more = set(hidden)
        for units in lanes.values():
            first = next((at for at, unit in enumerate(units) if unit in hidden), len(units))
            more |= set(units[first:])
        if more == hidden:
            return hidden
        hidden = more


@pytest.mark.parametrize("seed", range(200))
def test_hidden_units_are_those_of_the_definition(seed: int) -> None:
    chance = random.Random(seed)
    history = {f"lane {one}": [chance.choice(UNITS) for _ in range(chance.randrange(6))] for one in range(4)}
    lanes = Lanes()
    for lane, units in history.items():
        for unit in units:
            lanes.add(unit, lane)
    seeds = set(chance.sample(UNITS, chance.randrange(3)))
    hidden = lanes.hidden_with(seeds)
    assert hidden == by_definition(history, seeds)
    for units in history.values():  # what is copied of a lane is its beginning
        copied = [unit not in hidden for unit in units]
        assert copied == sorted(copied, reverse=True)


def test_units_without_keys_hide_nothing() -> None:
    lanes = Lanes()
    lanes.add(UNITS[0], "lane")
    assert lanes.hidden_with([UNITS[1]]) == {UNITS[1]}
