"""The command that simulates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from txnframework.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_it(*arguments: str) -> tuple[int, str, str]:
        status = main(["simulate", *arguments])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run_it


def test_scenarios_are_listed(typed: Run) -> None:
    """With what each is about."""
    status, out, _ = typed("--list")
    assert status == 0
    assert "chain" in out
    assert "Consume, transform and produce" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--seeds", "9-1"), "ends before it starts"),
        (("--seeds", "all"), "is not a range of seeds"),
        (("--only", "1"), "--replay"),
        (("--replay", "1", "--only", "a"), "is not a list of numbers"),
        (("--replay", "5", "--seeds", "1-3"), "--seeds has no effect here"),
        (("--replay", "5", "--mutant", "look-before-put"), "--mutant has no effect here"),
        (("--mutants", "--history", "h.jsonl"), "--history has no effect here"),
        (("--scenario", "nothing"), "unknown scenario 'nothing'"),
        (("--scenario", "nothing.toml"), "file not found"),
    ],
)
def test_bad_input_is_told(typed: Run, arguments: tuple[str, ...], said: str) -> None:
    """In one sentence, with status 2."""
    status, _, err = typed(*arguments)
    assert status == 2
    assert said in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("workload = ", "not valid TOML"),
        ('workload = "nothing"', "unknown workload 'nothing'"),
        ('workload = "chain"\nhosts = 0', "hosts"),
        (
            'workload = "chain"\n[faults]\nkiled = 1',
            "mine.toml: faults: unknown key 'kiled'; did you mean 'kille",
        ),
        ('workload = "chain"\n[host.transactions]\ntimeout_ms = 0', "timeout_ms"),
        ('workload = "mixture"\n[options]\ntopics = { a = 1 }\nactions = { fly = 1 }', "no action 'fly'"),
        (
            'workload = "chain"\n[options]\ntypes = ["shared", "nobody"]',
            "mine.toml: options.types[1]: no dispatcher named 'nobody'",
        ),
        (
            'workload = "mixture"\n[options]\ntopics = { a = 1 }\nactions = { send = 1 }\n'
            'subscriptions = [{ topic = "c", name = "b" }]',
            "subscription 'b' is of 'c', which is not one of its topics",
        ),
        (
            'workload = "mixture"\n[options]\ntopics = { a = 1 }\nactions = { send = 0 }',
            "an action with a weight above zero",
        ),
    ],
)
def test_a_wrong_scenario_is_told(typed: Run, tmp_path: Path, text: str, said: str) -> None:
    """Before anything runs."""
    file = tmp_path / "mine.toml"
    file.write_text(text, encoding="utf-8")
    status, _, err = typed("--scenario", str(file))
    assert status == 2
    assert said in err
