"""Exactly-once Spark pipelines over txnframework topics.

``format("txnframework")`` works with ``readStream``, ``read``, ``writeStream`` and ``write`` as soon as this
distribution is installed. ``txnframework_spark.microbatch`` walks through one micro-batch, process by process.
"""

from __future__ import annotations

from txnframework_spark.errors import (
    ApplicationMixed,
    BatchNotCommitted,
    CorruptOffset,
    DataLost,
    Diverged,
    InvalidOption,
    JavaUnusable,
    MixedBatch,
    NotJudgeable,
    PauseOrphaned,
    StateLost,
    TopicLost,
    TopicMissing,
    UnknownOption,
    Unsupported,
)
from txnframework_spark.java import check_java
from txnframework_spark.session import require_this_interpreter

__all__ = [
    "ApplicationMixed",
    "BatchNotCommitted",
    "CorruptOffset",
    "DataLost",
    "Diverged",
    "InvalidOption",
    "JavaUnusable",
    "MixedBatch",
    "NotJudgeable",
    "PauseOrphaned",
    "StateLost",
    "TopicLost",
    "TopicMissing",
    "UnknownOption",
    "Unsupported",
    "check_java",
    "require_this_interpreter",
]
