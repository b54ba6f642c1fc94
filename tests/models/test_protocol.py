"""Each rule of the protocol that has a model is needed, and together they are enough."""

from __future__ import annotations

from enum import StrEnum
from types import ModuleType

import pytest
from protocol import (
    acknowledging,
    belonging,
    claiming,
    closing,
    committing,
    covering,
    deciding,
    deleting,
    excluding,
    fencing,
    moving,
    settling,
    sharing,
    snapshotting,
    spanning,
    subscribing,
    transacting,
)

MODELS: tuple[ModuleType, ...] = (
    deciding,
    acknowledging,
    covering,
    belonging,
    subscribing,
    deleting,
    committing,
    closing,
    sharing,
    claiming,
    fencing,
    snapshotting,
    moving,
    spanning,
    settling,
    transacting,
    excluding,
)


def _name(model: ModuleType) -> str:
    return model.__name__.rpartition(".")[2]


@pytest.mark.parametrize(
    ("model", "rule"),
    [pytest.param(model, rule, id=f"{_name(model)}-{rule.name}") for model in MODELS for rule in model.Rule],
)
def test_a_rule_is_needed(model: ModuleType, rule: StrEnum) -> None:
    """Without the rule, exactly its violation occurs, so the model contains the danger."""
    found = model.explored(without=rule)

    assert found.harm == model.HARM[rule], f"without the rule that {rule}, {found}"
    assert found.story, found


@pytest.mark.parametrize("model", MODELS, ids=_name)
def test_the_rules_are_enough(model: ModuleType) -> None:
    """With all rules, no violation occurs in any order of steps, and the model has many states."""
    found = model.explored()

    assert found.harm is None, str(found)
    assert found.states >= model.STATES_MIN, "the model hardly goes anywhere, so it shows nothing"
