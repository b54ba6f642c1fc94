"""Which steps are invalid, which are too wide for a store, and which cannot include rows."""

from __future__ import annotations

import pytest

from txnframework.model import (
    Append,
    Check,
    Delete,
    Expect,
    IndexRange,
    Intent,
    Key,
    LedgerAppend,
    ProducerSequence,
    Put,
    PutSequential,
    Reach,
    Step,
    require_decided,
    require_valid,
)
from txnframework.model.records import WriteOperation

ONE, OTHER = Key("/one", "p"), Key("/other", "q")
MADE = Put(ONE, b"", Expect.ABSENT)
CHECK = Check(ONE, Expect.ANY)
NUMBERED = PutSequential(Key("/op", "p"), b"")
INTENT = Intent(Key("/op", "p"), (), WriteOperation(branch=0, segment="s", ledger=0, after=""))
PLAIN = LedgerAppend("a", (Append(b"x"),))
FIRST = LedgerAppend("a", (Append(b"x", sequence=ProducerSequence("p", 1, 1)),), INTENT)
VACANT = (IndexRange("i", b"", b"k"),)


@pytest.mark.parametrize(
    ("step", "reach"),
    [
        (Step(), Reach.PARTITION),
        (Step((CHECK,), (NUMBERED,)), Reach.PARTITION),
        (Step(puts=(MADE, Put(OTHER, b"", Expect.ANY))), Reach.STORE),
        (Step(puts=(MADE,), appends=(PLAIN, LedgerAppend("b", PLAIN.entries)), vacant=VACANT), Reach.DATABASE),
        (Step((CHECK,), appends=(FIRST,)), Reach.DATABASE),
    ],
)
def test_what_a_store_takes(step: Step, reach: Reach) -> None:
    """A store accepts the steps of its own reach and of smaller ones."""
    for wider in [one for one in Reach if one >= reach]:
        require_valid(step, wider)
    for narrower in [one for one in Reach if one < reach]:
        with pytest.raises(ValueError, match="of this store"):
            require_valid(step, narrower)


@pytest.mark.parametrize(
    "step",
    [
        Step((CHECK,), (MADE,)),
        Step(puts=(MADE,), deletes=(Delete(ONE, 1),)),
        Step(appends=(PLAIN, PLAIN)),
        Step(appends=(LedgerAppend("a", ()),)),
        Step(puts=(NUMBERED,), appends=(PLAIN,)),
        Step(puts=(NUMBERED,), vacant=VACANT),
        Step(appends=(LedgerAppend("a", FIRST.entries),)),
        Step(appends=(FIRST,)),
        Step((CHECK,), appends=(FIRST, LedgerAppend("b", PLAIN.entries))),
        Step((CHECK, Check(OTHER, 1)), appends=(FIRST,)),
        Step((CHECK,), (Put(OTHER, b"", Expect.ANY),), appends=(FIRST,)),
        Step((CHECK,), (NUMBERED,), appends=(FIRST,)),
        Step((CHECK,), deletes=(Delete(OTHER, 1),), appends=(FIRST,)),
        Step((CHECK,), appends=(FIRST,), vacant=VACANT),
        Step((CHECK,), appends=(LedgerAppend("a", (), INTENT),)),
    ],
)
def test_what_no_store_takes(step: Step) -> None:
    """A combination of incompatible parts is refused for any reach."""
    with pytest.raises(ValueError):  # noqa: PT011 - each case has a sentence of its own
        require_valid(step, Reach.DATABASE)


def test_what_rows_of_an_application_take() -> None:
    """The first put creates or changes a record, which decides the rows as well."""
    require_decided(Step(puts=(MADE, Put(OTHER, b"", 3)), appends=(PLAIN,), vacant=VACANT))
    require_decided(Step(puts=(Put(ONE, b"", 3), Put(OTHER, b"", Expect.ANY))))
    for step in (
        Step(appends=(PLAIN,)),
        Step(puts=(Put(ONE, b"", Expect.ANY), Put(OTHER, b"", 3))),
        Step(puts=(MADE, NUMBERED)),
        Step((CHECK,), appends=(FIRST,)),
    ):
        with pytest.raises(ValueError, match="a step with rows first puts a record"):
            require_decided(step)
