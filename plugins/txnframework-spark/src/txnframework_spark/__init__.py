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
from txnframework_spark.schema_ids import decode_by_schema_id, schema_id, with_schema_id
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
    "decode_by_schema_id",
    "describe_error",
    "lag",
    "require_this_interpreter",
    "schema_id",
    "state",
    "with_schema_id",
]
