"""Changing one record: the outcome of a change whose write had no reply."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from txnframework.broker.coordination import update_record
from txnframework.errors import OutcomeUnknown, TxnFrameworkError, Unavailable
from txnframework.model.metadata import Expect, Key, Put, Record

KEY = Key("/record")


class Going:
    """A store with a prescribed answer for each call; None: it performs the call."""

    def __init__(self, *answers: TxnFrameworkError | None) -> None:
        self.answers = list(answers)

    async def get(self, key: Key) -> Record:
        self._answer()
        return Record(key, b"", 1)

    async def put(self, _: Put) -> None:
        self._answer()

    def _answer(self) -> None:
        answer = self.answers.pop(0)
        if answer is not None:
            raise answer


def changed(*answers: TxnFrameworkError | None) -> None:
    store: Any = Going(*answers)

    async def decide(_: Record | None) -> Put | None:
        return Put(KEY, b"", Expect.ANY)

    asyncio.run(update_record(store, KEY, decide))


def test_a_store_that_goes_away() -> None:
    """Before the first write, nothing was changed; after a write without a reply, the outcome is unknown."""
    away, lost = Unavailable("away"), OutcomeUnknown("no answer")
    for answers in ((away,), (None, away)):
        with pytest.raises(Unavailable):
            changed(*answers)
    for answers in ((None, lost, away), (None, lost, None, away)):
        with pytest.raises(OutcomeUnknown, match="record /record may have changed: no answer"):
            changed(*answers)
    changed(None, lost, None, None)
