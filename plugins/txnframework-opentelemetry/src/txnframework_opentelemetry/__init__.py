"""Traces and metrics through OpenTelemetry; only its API is needed, and an application chooses the SDK."""

from __future__ import annotations

from txnframework_opentelemetry._contexts import context_of
from txnframework_opentelemetry._instruments import OpenTelemetryInstruments
from txnframework_opentelemetry._options import ObserverOptions
from txnframework_opentelemetry._spans import TracingObserver

__all__ = ["ObserverOptions", "OpenTelemetryInstruments", "TracingObserver", "context_of"]
