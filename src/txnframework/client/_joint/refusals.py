"""Why a transaction was not made in one step."""

from __future__ import annotations

from typing import Final

from txnframework.broker import JOINT_REFUSALS, Superseded


class StepsNeeded(Superseded):
    """The transaction cannot be one step now; nothing was written."""


REFUSALS: Final = (Superseded, *JOINT_REFUSALS)
"""The errors after which nothing is written by the step, now or later, so that the usual steps may follow."""
