"""The measures, one module each."""

from __future__ import annotations

from typing import Final

from txnframework_compare.measures._measure import Figure, Measure, Plot, Take, Unable, View
from txnframework_compare.measures.ending import ENDING
from txnframework_compare.measures.recovery import RECOVERY
from txnframework_compare.measures.sealed import SEALED
from txnframework_compare.measures.together import TOGETHER
from txnframework_compare.measures.visible import VISIBLE
from txnframework_compare.measures.writes import WRITES

__all__ = ["MEASURES", "Figure", "Measure", "Plot", "Take", "Unable", "View"]

MEASURES: Final = {one.name: one for one in (ENDING, WRITES, TOGETHER, RECOVERY, VISIBLE, SEALED)}
"""Every measure, in the order in which it is taken and shown."""
