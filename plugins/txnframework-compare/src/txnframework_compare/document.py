"""
The result as one JSON document, with the machine and the releases with which it was measured.

The README describes the document; ``FORMAT`` changes when its meaning changes.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from txnframework.config import redact_url
from txnframework_compare.comparison import FamilyResult, FigureResult, MeasureResults
from txnframework_compare.families import Family
from txnframework_compare.system import Workload


def machine() -> dict[str, object]:
    """Return the properties that figures depend on, without host and user names."""
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        "txnframework": _version(),
    }


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _version() -> str:
    try:
        return version("txnframework")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"


FORMAT: Final = 2


def document_of(
    measured: Sequence[MeasureResults], families: Sequence[Family], workload: Workload, backend: dict[str, str | None]
) -> dict[str, object]:
    """Return all results; ``backend`` has the URLs from the command line, by option."""
    return {
        "format": FORMAT,
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "backend": {option: None if url is None else redact_url(url) for option, url in backend.items()},
        "machine": machine(),
        "workload": asdict(workload),
        "families": [_family(one) for one in families],
        "measures": [_measure(one) for one in measured],
    }


def _family(family: Family) -> dict[str, object]:
    return {"name": family.name, "about": family.about, "domain": family.domain, "configuration": family.config()}


def _measure(measured: MeasureResults) -> dict[str, object]:
    measure = measured.measure
    return {
        "name": measure.name,
        "title": measure.title,
        "size": measure.axis,
        "results": [_result(one, measure.axis is not None) for one in measured.results],
    }


def _result(result: FamilyResult, has_size: bool) -> dict[str, object]:
    return {
        "family": result.family.name,
        "size": result.size if has_size else None,
        "cannot": result.unable,
        "figures": [_figure(one) for one in result.figures.values()],
    }


def _figure(taken: FigureResult) -> dict[str, object]:
    return {
        "name": taken.name,
        "unit": taken.unit,
        "median": taken.median if taken.rounds else None,
        "rounds": list(taken.rounds),
        "cannot": taken.unable,
    }
