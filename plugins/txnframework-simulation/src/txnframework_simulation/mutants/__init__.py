"""
Mutation: breaks each rule of the protocol in the real code, to check that the simulation detects it.

``mutants.toml`` contains the edits of each mutant. ``runner`` runs the simulation over the edited code, in a separate
process. ``try_mutants`` runs it for many mutants.
"""

from __future__ import annotations

from txnframework_simulation.mutants.detection import (
    Detected,
    Mutant,
    MutantResult,
    Undetected,
    Unusable,
    mutants,
    select_mutants,
    try_mutant,
    try_mutants,
)
from txnframework_simulation.mutants.runner import TABLE

__all__ = [
    "TABLE",
    "Detected",
    "Mutant",
    "MutantResult",
    "Undetected",
    "Unusable",
    "mutants",
    "select_mutants",
    "try_mutant",
    "try_mutants",
]
