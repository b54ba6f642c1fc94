"""
The provider of spans in Python processes of Spark: it writes each ended span to a file, as a line of JSON.

OpenTelemetry's API finds it by the entry point beside it, where ``OTEL_PYTHON_TRACER_PROVIDER`` names it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

FILE = "TXN_TEST_SPANS"
"""The environment variable that names the file."""


class FileExporter(SpanExporter):
    """Appends spans to the file; several processes may do so."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write the spans."""
        with Path(os.environ[FILE]).open("a", encoding="utf-8") as written:
            for one in spans:
                facts = {"name": one.name, "start_ns": one.start_time, "end_ns": one.end_time, "pid": os.getpid()}
                written.write(json.dumps({**facts, **dict(one.attributes or {})}) + "\n")
        return SpanExportResult.SUCCESS


class Recorder(TracerProvider):
    """Records every span."""

    def __init__(self) -> None:
        super().__init__()
        self.add_span_processor(SimpleSpanProcessor(FileExporter()))
