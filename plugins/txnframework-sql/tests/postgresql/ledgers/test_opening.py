"""Opening ledgers for the first time: several processes at once, and users who may not make anything."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from txnframework.errors import InvalidInput
from txnframework.model import EARLIEST, Append, EntryRange, Limit
from txnframework_sql.postgresql import _functions, _schema

if TYPE_CHECKING:
    from conftest import Ledgers


@pytest.mark.parametrize("lock", ["tables", "functions"])
def test_one_of_several_makes_what_is_missing(ledgers: Ledgers, lock: str) -> None:
    """Whoever waited while another one made the tables, or the functions, finds them made."""
    take = {"tables": _schema._LOCK, "functions": f"SELECT pg_advisory_xact_lock({_functions._LOCK_NUMBER})"}

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


@asynccontextmanager
async def user_of_rows(ledgers: Ledgers) -> AsyncIterator[str]:
    """Make a user who may read and write rows, and make nothing; give the URL."""
    name = f"txn_test_{secrets.token_hex(8)}"
    async with ledgers.session() as session:
        await session.execute(
            f"CREATE ROLE {name} LOGIN PASSWORD '{name}';"
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {name};"
            f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {name}"
        )
        try:
            split = urlsplit(ledgers.url)
            yield split._replace(netloc=f"{name}:{name}@{split.netloc.rpartition('@')[2]}").geturl()
        finally:
            await session.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_user_who_makes_nothing(ledgers: Ledgers) -> None:
    """Who may read and write rows uses what the owner has made; what is missing is refused in one sentence."""

    async def test() -> None:
        async with ledgers.opened():
            pass
        async with user_of_rows(ledgers) as url:
            users = type(ledgers)(url)
            async with users.opened() as store:
                ledger = await store.create("a")
                (appended,) = await ledger.append((Append(b"x"),), None)
                (found,) = await ledger.read(EntryRange(EARLIEST, appended.position), Limit(10))
                assert found.data == b"x"
            async with ledgers.session() as session:
                for function in _functions._ALL:
                    await session.execute(f"DROP FUNCTION {function.name}")
            with pytest.raises(InvalidInput, match="denies this user a right"):
                async with users.opened():
                    pass

    ledgers.run(test)
