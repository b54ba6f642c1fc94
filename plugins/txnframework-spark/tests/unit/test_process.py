"""Which configuration a process of Spark opens its stores by."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import SparkFiles

from txnframework_spark.process import find_shipped_file


def test_a_file_that_came_with_the_job_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was shipped with the job is found by its name; otherwise, the path is used as given."""
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path))
    assert find_shipped_file("/of/the/driver/txnframework.toml") is None
    (tmp_path / "txnframework.toml").touch()
    assert find_shipped_file("/of/the/driver/txnframework.toml") == tmp_path / "txnframework.toml"
