"""A session that is opened for a block."""

from __future__ import annotations

from typing import Any

import pyspark.sql
import pytest

from txnframework_spark import session
from txnframework_spark.session import spark_session


class Dead:
    """A session whose JVM has died, and what builds it."""

    def config(self, *_: object) -> Dead:
        return self

    def getOrCreate(self) -> Dead:  # noqa: N802 - Spark's name
        return self

    def stop(self) -> None:
        raise ConnectionRefusedError


class Spark:
    builder: Any = Dead()


def test_what_went_wrong_is_told_also_where_the_jvm_has_died(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopping it fails then, and says nothing that anybody wants to know."""
    monkeypatch.setattr(pyspark.sql, "SparkSession", Spark)
    monkeypatch.setattr(session, "check_java", lambda: None)
    with pytest.raises(RuntimeError, match="what went wrong"), spark_session({"spark.master": "yarn"}, None):
        raise RuntimeError("what went wrong")
