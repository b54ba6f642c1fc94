"""What a mutant is: a rule, and the edits that break it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from txnframework.errors import InvalidInput
from txnframework_simulation.mutants.mutated import TABLE, tables


class Edit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A piece of a module's source, which stands there once, and what it is replaced by."""

    module: str
    find: str
    replace: str


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The code with one rule broken; ``scenarios`` are those of the simulation that come near it, ``table`` says it."""

    name: str
    rule: str
    scenarios: tuple[str, ...]
    edits: tuple[Edit, ...]
    table: Path = TABLE


def mutants(table: Path = TABLE) -> tuple[Mutant, ...]:
    """Return all of them, in the order of their file."""
    return tuple(msgspec.convert({**one, "table": table}, Mutant) for one in tables(table).values())


def some_mutants(names: Sequence[str], table: Path = TABLE) -> tuple[Mutant, ...]:
    """
    Return those of these names in a table; without names, all.

    :raises InvalidInput: there is no such mutant.
    """
    known = {one.name: one for one in mutants(table)}
    for name in names:
        if name not in known:
            raise InvalidInput(f"there is no mutant {name!r}; there are {', '.join(sorted(known))}")
    return tuple(known[name] for name in names) if names else tuple(known.values())
