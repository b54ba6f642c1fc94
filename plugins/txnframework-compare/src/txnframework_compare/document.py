"""The result as one JSON document. The README describes it; ``FORMAT`` changes when its meaning changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Final

from txnframework.config import redact_url
from txnframework_compare.families import Family
from txnframework_compare.machine import machine
from txnframework_compare.results import Measured, Result, Taken
from txnframework_compare.workload import Workload

FORMAT: Final = 1


def document_of(
    measured: Sequence[Measured], families: Sequence[Family], workload: Workload, backend: dict[str, str | None]
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


def _measure(measured: Measured) -> dict[str, object]:
    measure = measured.measure
    return {
        "name": measure.name,
        "title": measure.title,
        "size": measure.axis,
        "results": [_result(one, measure.axis is not None) for one in measured.results],
    }


def _result(result: Result, has_size: bool) -> dict[str, object]:
    return {
        "family": result.family.name,
        "size": result.size if has_size else None,
        "cannot": result.unable,
        "figures": [_figure(one) for one in result.figures.values()],
    }


def _figure(taken: Taken) -> dict[str, object]:
    return {
        "name": taken.name,
        "unit": taken.unit,
        "median": taken.median if taken.rounds else None,
        "rounds": list(taken.rounds),
        "cannot": taken.unable,
    }
