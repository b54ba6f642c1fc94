"""Steps of one space name no ledger of another one."""

from __future__ import annotations

import pytest

from txnframework.model import Append, Expect, Key, LedgerAppend, Put, Step
from txnframework.testing import VirtualEnvironment
from txnframework_memory import MemorySpace


async def test_ledgers_of_another_space() -> None:
    """A step that names a ledger of another space is refused, and writes to neither."""
    here, there = MemorySpace(VirtualEnvironment(1)), MemorySpace(VirtualEnvironment(2))
    records = await here.open_metadata()
    theirs = await (await there.open_ledgers(there.identity)).create("a")
    step = Step(
        puts=(Put(Key("/header"), b"", Expect.ABSENT),),
        appends=(LedgerAppend(theirs.reference, (Append(b"x"),)),),
    )
    with pytest.raises(ValueError, match="no reference of a ledger of this space"):
        await records.apply(step)
    assert await records.get(Key("/header")) is None
    assert (await theirs.tail()).last_confirmed.entry_id == -1
