"""A process that dies at a chosen step: after that step, its handles on the stores change nothing."""

from __future__ import annotations

from typing import Any

CHANGES = frozenset({"put", "delete", "create", "trim"})


class Dies(Exception):
    """The process is gone."""


class Dying:
    """Wraps a store or a ledger: the first changes pass, and later ones fail, ``applied`` or not.

    ``budget`` holds one number: how many changes still pass. Wrappers that share the list die together.
    """

    def __init__(self, wrapped: Any, budget: list[int], applied: bool) -> None:
        self._wrapped = wrapped
        self._budget = budget
        self._applied = applied

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._wrapped, name)
        if name not in CHANGES:
            return found

        async def change(*args: Any) -> Any:
            if self._budget[0] > 0:
                self._budget[0] -= 1
                return await found(*args)
            if self._applied:
                await found(*args)
            raise Dies

        return change
