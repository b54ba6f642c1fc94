"""The reference of a pipeline's file has the keys that the code knows."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import msgspec
import pytest

from txnframework_spark.pipeline.description import Pipeline

DOCS = Path(__file__).parents[5] / "docs"
PAGE = DOCS / "reference" / "pipeline-file.md"


def written() -> str:
    if not PAGE.exists():
        pytest.skip("the documentation is not part of the distribution")
    spec = importlib.util.spec_from_file_location("pipeline_file", DOCS / "pipeline_file.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page: str = module.page()
    return page


def test_the_page_is_generated_from_the_description() -> None:
    """Generate it with ``python docs/pipeline_file.py > docs/reference/pipeline-file.md``."""
    assert PAGE.read_text(encoding="utf-8") == written()


def test_the_page_has_every_table() -> None:
    for field in msgspec.structs.fields(Pipeline):
        assert f"[{field.encode_name}]" in written()
