"""First openings of ledgers, by several processes at once, and by users who may not create anything."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from txnframework.errors import InvalidInput
from txnframework.model import EARLIEST, Append, EntryRange, Limit
from txnframework_sql.postgresql._connection import Connection
from txnframework_sql.postgresql._schema import APPLY_STEPS, FUNCTIONS
from txnframework_sql.schema import VERSION_TABLE

if TYPE_CHECKING:
    from conftest import Ledgers


@pytest.mark.parametrize(
    "creating",
    [
        f"CREATE TABLE public.{VERSION_TABLE} (version_num int)",
        f"CREATE FUNCTION public.{APPLY_STEPS.name}({', '.join(APPLY_STEPS.types)}) RETURNS int LANGUAGE sql"
        " AS 'SELECT 1'",
    ],
    ids=["tables", "functions"],
)
async def test_one_of_several_makes_what_is_missing(ledgers: Ledgers, creating: str) -> None:
    """
    Of several openings, one creates the tables, or the functions; the waiting ones find them.

    They wait for no advisory lock, which every login of the database could hold.
    """
    async with AsyncExitStack() as opened:
        async with ledgers.held(creating) as hold:
            opening = [asyncio.create_task(opened.enter_async_context(ledgers.opened())) for _ in range(3)]
            await hold.waiting(3)
            assert not await hold.looking.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
            await hold.let_go()
            stores = await asyncio.gather(*opening)
        assert len({store.identity for store in stores}) == 1
        for store in stores:
            await store.create("a")
        assert await stores[0].list_names("", "", 10) == ("a",)


async def test_tables_made_between_two_reads(ledgers: Ledgers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process creates the tables after this one has found none: they are not those of another program."""
    made = False
    read = Connection.read

    async def then_make(self: Connection, *arguments: Any) -> Any:
        nonlocal made
        found = await read(self, *arguments)
        if not made:
            made = True
            async with ledgers.opened():
                pass
        return found

    monkeypatch.setattr(Connection, "read", then_make)
    async with ledgers.opened() as store:
        await store.create("a")


@asynccontextmanager
async def user_of_rows(ledgers: Ledgers) -> AsyncIterator[str]:
    """Create a user who may only read and write rows; yield the URL."""
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


async def test_user_who_makes_nothing(ledgers: Ledgers) -> None:
    """
    A user with rights on rows uses the owner's tables and functions; if one is missing, opening fails with a clear
    error.
    """
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
            for function in FUNCTIONS:
                await session.execute(f"DROP FUNCTION {function.name}")
        with pytest.raises(InvalidInput, match="denies this user a required right"):
            async with users.opened():
                pass
