"""The Spark settings of a pipeline."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from txnframework_spark.pipeline import frames
from txnframework_spark.pipeline.loader import load_pipeline
from txnframework_spark.session import LOCAL_CHECKPOINT

(SETTING,) = LOCAL_CHECKPOINT
TEXT = """
[pipeline]
name = "p"
checkpoint = "CHECKPOINT"

[spark.conf]
"spark.sql.shuffle.partitions" = 3
EXTRA

[[sources]]
view = "v"
subscribe = "in"

[[sinks]]
topic = "out"
"""


class Session:
    """As much of one as is looked at."""

    @property
    def sparkContext(self) -> Session:  # noqa: N802 - Spark's name
        return self

    def setLogLevel(self, _level: str) -> None:  # noqa: N802 - Spark's name
        pass


@pytest.mark.parametrize(
    ("checkpoint", "extra", "written_by"),
    [
        ("checkpoint", "", LOCAL_CHECKPOINT[SETTING]),
        ("s3a://bucket/checkpoint", "", None),
        ("checkpoint", f'"{SETTING}" = "mine"', "mine"),
    ],
)
def test_how_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoint: str, extra: str, written_by: str | None
) -> None:
    """Faster where it is a local folder, unless the file says how; a store elsewhere is left to Spark."""
    given: dict[str, str] = {}

    @contextlib.contextmanager
    def opened(settings: Mapping[str, str], _log: Any) -> Iterator[Session]:
        given.update(settings)
        yield Session()

    monkeypatch.setattr(frames, "spark_session", opened)
    file = tmp_path / "pipeline.toml"
    file.write_text(TEXT.replace("CHECKPOINT", checkpoint).replace("EXTRA", extra))
    with frames.open_session(load_pipeline(file), None):
        pass
    assert given.get(SETTING) == written_by
    assert given["spark.sql.shuffle.partitions"] == "3"
