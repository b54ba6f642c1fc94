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
    NotAcknowledged,
    NotJudgeable,
    PauseOrphaned,
    StateLost,
    TopicLost,
    TopicMissing,
    UnknownOption,
    Unsupported,
    describe_error,
)
from txnframework_spark.progress import StateProgress, lag, state
from txnframework_spark.session import REDACTION, check_java, require_this_interpreter

__all__ = [
    "REDACTION",
    "ApplicationMixed",
    "BatchNotCommitted",
    "CorruptOffset",
    "DataLost",
    "Diverged",
    "InvalidOption",
    "JavaUnusable",
    "MixedBatch",
    "NotAcknowledged",
    "NotJudgeable",
    "PauseOrphaned",
    "StateLost",
    "StateProgress",
    "TopicLost",
    "TopicMissing",
    "UnknownOption",
    "Unsupported",
    "check_java",
    "describe_error",
    "lag",
    "require_this_interpreter",
    "state",
]
