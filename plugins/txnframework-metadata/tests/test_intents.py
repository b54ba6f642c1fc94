"""What a process remembers to have announced."""

from __future__ import annotations

from txnframework.model import Branch, TxnID
from txnframework_metadata.buffer.intents import _Noted

FIRST, SECOND, THIRD = (TxnID(0, number) for number in range(1, 4))


def test_as_many_branches_as_configured_are_remembered() -> None:
    """Beyond the bound a branch of the oldest transaction is forgotten; what was forgotten gives its room back."""
    noted = _Noted(3)
    noted.note(Branch(FIRST, 0), 1)
    noted.note(Branch(FIRST, 7), 1)
    noted.note(Branch(SECOND), 1)
    noted.note(Branch(SECOND), 2)
    noted.note(Branch(THIRD), 2)
    assert noted.get(Branch(FIRST, 0)) is None
    assert noted.get(Branch(FIRST, 7)) == 1
    assert noted.get(Branch(SECOND)) == 2
    noted.forget_all(FIRST)
    noted.forget(Branch(SECOND))
    for number in (1, 2):
        noted.note(Branch(SECOND, number), 3)
    assert [noted.get(branch) for branch in (Branch(SECOND, 1), Branch(SECOND, 2), Branch(THIRD))] == [3, 3, 2]
