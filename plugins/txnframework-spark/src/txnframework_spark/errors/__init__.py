"""Errors that only this plugin raises; a caller can branch on each class."""

from __future__ import annotations

from txnframework_spark.errors._runs import (
    ApplicationMixed,
    BatchNotCommitted,
    CorruptOffset,
    DataLost,
    Diverged,
    ExportConflict,
    JobFailed,
    MixedBatch,
    NotAcknowledged,
    NotJudgeable,
    PauseOrphaned,
    PipelineFailed,
    StateLost,
    TopicLost,
    TopicMissing,
)
from txnframework_spark.errors._texts import describe_error, extract_reason
from txnframework_spark.errors._usage import (
    InvalidOption,
    JavaUnusable,
    StoresNotConfigured,
    UnknownOption,
    Unsupported,
    UnusableFolder,
)

__all__ = [
    "ApplicationMixed",
    "BatchNotCommitted",
    "CorruptOffset",
    "DataLost",
    "Diverged",
    "ExportConflict",
    "InvalidOption",
    "JavaUnusable",
    "JobFailed",
    "MixedBatch",
    "NotAcknowledged",
    "NotJudgeable",
    "PauseOrphaned",
    "PipelineFailed",
    "StateLost",
    "StoresNotConfigured",
    "TopicLost",
    "TopicMissing",
    "UnknownOption",
    "Unsupported",
    "UnusableFolder",
    "describe_error",
    "extract_reason",
]

for _name in __all__:
    # Tracebacks, logs and pickles show the module that programs import from.
    globals()[_name].__module__ = __name__
