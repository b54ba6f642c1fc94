"""Several processes that open one database for the first time."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from txnframework_sql.postgresql import _functions, _upgrade

if TYPE_CHECKING:
    from conftest import Ledgers


@pytest.mark.parametrize("lock", ["tables", "functions"])
def test_one_of_several_makes_what_is_missing(ledgers: Ledgers, lock: str) -> None:
    """Whoever waited while another one made the tables, or the functions, finds them made."""
    take = {"tables": _upgrade._LOCK, "functions": f"SELECT pg_advisory_xact_lock({_functions._LOCK_NUMBER})"}

    async def test() -> None:
        async with AsyncExitStack() as opened:
            async with ledgers.held(take[lock]) as hold:
                opening = [asyncio.create_task(opened.enter_async_context(ledgers.opened())) for _ in range(3)]
                await hold.waiting(3)
                await hold.let_go()
                stores = await asyncio.gather(*opening)
            assert len({store.identity for store in stores}) == 1
            for store in stores:
                await store.create("a")
            assert await stores[0].list_names("", "", 10) == ("a",)

    ledgers.run(test)
