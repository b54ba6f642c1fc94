"""The measures, one module each."""

from __future__ import annotations

from typing import Final

from txnframework_compare.measures._measure import Figure, Measure, NotMeasurable, Plot, TableView, TakeMeasure
from txnframework_compare.measures.latency import ENDING, SEALED, VISIBLE
from txnframework_compare.measures.recovery import RECOVERY
from txnframework_compare.measures.writes import CONCURRENT, WRITES

__all__ = ["MEASURES", "Figure", "Measure", "NotMeasurable", "Plot", "TableView", "TakeMeasure"]

MEASURES: Final = {one.name: one for one in (ENDING, WRITES, CONCURRENT, RECOVERY, VISIBLE, SEALED)}
"""Every measure, in the order in which it is taken and shown."""
