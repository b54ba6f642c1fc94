"""The reference of a pipeline's file is what the code has."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from txnframework_spark.pipeline.description import Pipeline
from txnframework_spark.pipeline.reference import page

PAGE = Path(__file__).parents[5] / "docs" / "reference" / "pipeline-file.md"


def test_the_page_is_written_from_the_description() -> None:
    """Write it anew with ``python -m txnframework_spark.pipeline.reference``."""
    if not PAGE.exists():
        pytest.skip("the distribution stands alone, without the documentation of the whole")
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_table_stands_in_it() -> None:
    for field in msgspec.structs.fields(Pipeline):
        assert f"[{field.encode_name}]" in page()
