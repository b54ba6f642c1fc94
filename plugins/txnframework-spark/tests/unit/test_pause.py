"""Pause points report, wait, and never wait without a controller."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from txnframework_spark.errors import InvalidOption, PauseOrphaned
from txnframework_spark.microbatch.pause import MID_WRITE, VARIABLE, Pauses

PATIENCE_S = 60


def test_without_the_variable_nothing_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    pauses = Pauses.from_environment()
    assert not pauses.points
    pauses.reach(MID_WRITE, 0)


def test_points_are_chosen_by_batch() -> None:
    pauses = Pauses.parse("mid-write@2,mid-write@4,committed;/tmp/x")
    assert [batch for batch in range(6) if pauses.includes("mid-write", batch)] == [2, 4]
    assert pauses.includes("committed", 77)
    assert not pauses.includes("planned", 2)


@pytest.mark.parametrize("text", ["mid-write", "nowhere@1;/tmp", "mid-write@x;/tmp", "mid-write@1;", "planning@1;/tmp"])
def test_a_wrong_value_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption):
        Pauses.parse(text)


def wait_for_report(directory: Path) -> Path:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = list(directory.glob("*.json"))
        if found:
            return found[0]
        time.sleep(0.01)
    raise AssertionError("nobody arrived")


def test_who_arrives_reports_and_goes_on_when_released(tmp_path: Path) -> None:
    pauses = Pauses.parse(f"mid-write@2;{tmp_path}")
    waiting = threading.Thread(target=pauses.reach, args=(MID_WRITE, 2), kwargs={"txn": "t1"})
    waiting.start()
    facts = json.loads(wait_for_report(tmp_path).read_text())
    assert (facts["point"], facts["batch"], facts["txn"]) == ("mid-write", 2, "t1")
    (tmp_path / "mid-write-2.release").touch()
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()


def test_one_of_those_who_wait_at_a_point_may_be_released_alone(tmp_path: Path) -> None:
    """As two attempts of one task, of which one is to go on."""
    pauses = Pauses.parse(f"planning;{tmp_path}")
    waiting = threading.Thread(target=pauses.reach, args=("planning", None))
    waiting.start()
    assert json.loads(wait_for_report(tmp_path).read_text())["batch"] is None
    (tmp_path / f"planning-{os.getpid()}.release").touch()
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()


def test_a_vanished_directory_orphans_who_waits(tmp_path: Path) -> None:
    directory = tmp_path / "pauses"
    directory.mkdir()
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            Pauses.parse(f"mid-write;{directory}").reach(MID_WRITE, 0)
        except PauseOrphaned as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_for_report(directory)
    shutil.rmtree(directory)
    waiting.join(PATIENCE_S)
    assert raised
