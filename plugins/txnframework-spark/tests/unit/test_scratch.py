"""Temporary folders, and what killed processes leave of them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from txnframework_spark.session import scratch_folder

PREFIX = "txnframework-test-"
PROGRAM = f"""
import sys
from txnframework_spark.session import scratch_folder
with scratch_folder({PREFIX!r}) as folder:
    (folder / "file").touch()
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_process_left_is_removed_by_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of living processes, new ones, and unrelated ones are not removed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / f"{PREFIX}being-made").mkdir()
    (tmp_path / f"{PREFIX}1.log").touch()
    others = {*tmp_path.iterdir()}
    other = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        left = Path(other.stdout.readline().strip())
        with scratch_folder(PREFIX) as mine:
            assert {*tmp_path.iterdir()} == {*others, left, mine}
    finally:
        other.kill()
        other.communicate()
    assert left.exists()
    with scratch_folder(PREFIX) as mine:
        assert {*tmp_path.iterdir()} == {*others, mine}
        assert mine.stat().st_mode & 0o777 == 0o700
    assert {*tmp_path.iterdir()} == others
