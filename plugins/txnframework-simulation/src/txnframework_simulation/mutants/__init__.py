"""
Mutation: the rules of the protocol, each broken in the real code, to see that the simulation notices.

``mutants.toml`` says what is replaced by what; ``mutated`` runs the simulation over that, in a process of its own, and
``try_mutants`` has many of them done.
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
