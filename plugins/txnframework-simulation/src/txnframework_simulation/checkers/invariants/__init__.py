"""One module for each rule: its definition, and ``check``, which uses only the facts of a history."""

from __future__ import annotations

from collections.abc import Callable

from txnframework_simulation.checkers.facts import Facts
from txnframework_simulation.checkers.invariants import (
    aborted_read,
    ack_leaked,
    ack_lost,
    circular_information_flow,
    dead_letter,
    double_ack,
    duplicate,
    early_ack,
    fractured_snapshot,
    hasty_commit,
    inconsistent_positions,
    lost_write,
    missed_read,
    non_monotonic_read,
    order_violation,
    outcome_flip,
    stuck_reader,
    torn_transaction,
    wrong_compaction,
    zombie_operation,
)
from txnframework_simulation.checkers.violations import Violation

_MODULES = (
    inconsistent_positions,
    duplicate,
    aborted_read,
    lost_write,
    torn_transaction,
    circular_information_flow,
    ack_lost,
    ack_leaked,
    double_ack,
    early_ack,
    hasty_commit,
    zombie_operation,
    outcome_flip,
    stuck_reader,
    order_violation,
    non_monotonic_read,
    missed_read,
    fractured_snapshot,
    dead_letter,
    wrong_compaction,
)

CHECKS: dict[str, Callable[[Facts], list[Violation]]] = {module.NAME: module.check for module in _MODULES}
"""All rules, by their names."""
