"""Passwords of stores' URLs are in nothing that Spark prints."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from txnframework_spark import REDACTION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "pL4inS3cret"
URLS = (
    f"postgresql://sparky:{SECRET}@127.0.0.1:1/db",
    f"postgresql://sparky:{SECRET}/@x@127.0.0.1:1/db",
    f"postgresql://sparky@127.0.0.1:1/db?password={SECRET}",
)


def printed(work: Callable[[], object]) -> str:
    """Return what something prints and returns, or says when it fails."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            returned = work()
        except Exception as error:  # whatever Spark raises for a server that is not there
            returned = error
    return f"{out.getvalue()}{returned}"


@pytest.mark.parametrize("url", URLS)
def test_no_plan_shows_a_password(spark: SparkSession, url: str) -> None:
    """Of a stream, of a batch, of SQL."""
    assert spark.conf.get("spark.redaction.string.regex") == REDACTION["spark.redaction.string.regex"]
    stream = spark.readStream.format("txnframework").options(metadata=url, subscribe="in").load()
    batch = spark.read.format("txnframework").options(metadata=url, subscribe="in").load()
    view = f"CREATE TEMPORARY VIEW v USING txnframework OPTIONS (metadata '{url}', subscribe 'in')"
    shown = [
        printed(lambda: stream.explain(True)),
        printed(lambda: batch.explain(True)),
        printed(lambda: batch.explain("formatted")),
        printed(lambda: spark.sql(f"EXPLAIN EXTENDED {view}").collect()),
    ]
    for text in shown:
        assert SECRET not in text
    assert any("(redacted)" in text for text in shown)
