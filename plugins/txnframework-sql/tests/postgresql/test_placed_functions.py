"""Functions that another login created in the schema of a store are never called."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import asyncpg
import pytest

from txnframework.errors import InvalidInput, Unavailable
from txnframework.interfaces import IMetadataStore
from txnframework.model import Append, EntryRange, Expect, IndexEntry, Key, Limit, Position, Put, PutSequential, Step
from txnframework_sql.postgresql._schema import (
    APPEND_ENTRIES,
    APPEND_TO_LEDGERS,
    APPLY_STEPS,
    READ_ENTRIES,
    Function,
)

if TYPE_CHECKING:
    from conftest import Stores

OURS = (APPEND_ENTRIES, APPEND_TO_LEDGERS, APPLY_STEPS, READ_ENTRIES)
# What a call of ours would rather mean, were the schema searched: PostgreSQL's own take other types there.
NEARER = ("nextval(text)", "pg_notify(text, character varying)", "lpad(text, bigint, text)", "cardinality(bigint[])")
PLACED = """
CREATE FUNCTION public.{signature} RETURNS {returns} LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO public.called VALUES (current_user); RETURN NULL; END $$
"""


@pytest.fixture
def logins(stores: Stores) -> dict[str, str]:
    """
    Return the URLs of the store's login, and of another one that may create in its schema.

    The other login sees in the table ``called`` whether one of its functions was called.
    """
    split = urlsplit(stores.url)
    for name in ("owner", "stranger"):
        stores.server.run(
            f"DO $$ BEGIN CREATE ROLE {name} LOGIN PASSWORD '{name}';"
            " EXCEPTION WHEN duplicate_object THEN NULL; END $$",
            stores.database,
        )
    stores.server.run("GRANT CREATE ON SCHEMA public TO owner, stranger", stores.database)
    place = split.netloc.rpartition("@")[2]
    return {name: split._replace(netloc=f"{name}:{name}@{place}").geturl() for name in ("owner", "stranger")}


async def ask(url: str, *statements: str) -> object:
    """Execute statements without the stores; return the first value of the last one."""
    raw = await asyncpg.connect(url)
    try:
        for statement in statements[:-1]:
            await raw.execute(statement)
        return await raw.fetchval(statements[-1])
    finally:
        await raw.close()


async def use(stores: Stores, url: str) -> None:
    """Write and read by every kind of statement."""
    async with stores.metadata(url) as store, stores.ledgers(url) as ledgers:
        key = Key("/a")
        version = await store.put(Put(key, b"1", Expect.ABSENT, (IndexEntry("by", b"k"),)))
        await store.put(Put(key, b"2", version))
        await store.apply(Step(puts=(PutSequential(Key("/b"), b"1"),)))
        await (await store.acquire_lease("mine", "me")).release()
        ledger = await ledgers.create("one")
        await ledger.append((Append(b"x"),), None)
        end = (await ledger.tail()).last_confirmed
        assert [one.data for one in await ledger.read(EntryRange(Position(-1, -1), end), Limit(9, 99))] == [b"x"]
        await store.delete(key, Expect.ANY)
        await ledgers.delete("one", None)


async def reconnect(stores: Stores, store: IMetadataStore) -> None:
    """Replace all connections of the store."""
    stores.disconnect_everybody()
    while True:
        try:
            await store.get(Key("/none"))
            return
        except Unavailable:
            continue


@pytest.mark.parametrize("function", OURS, ids=lambda one: one.name)
def test_under_a_name_of_ours(stores: Stores, logins: dict[str, str], function: Function) -> None:
    """
    A database is refused if another login created one of our functions, or an overload; the error names the login.
    """
    types = ", ".join(function.types)
    for signature in (f"{function.name}({types})", f"{function.name}(text)"):

        async def test(signature: str = signature) -> None:
            await ask(
                logins["stranger"],
                "CREATE TABLE IF NOT EXISTS public.called (who text)",
                "GRANT INSERT ON public.called TO PUBLIC",
                PLACED.format(signature=signature, returns="bigint"),
            )
            for opened in (stores.metadata(logins["owner"]), stores.ledgers(logins["owner"])):
                with pytest.raises(InvalidInput, match=rf"{function.name}.*belongs to 'stranger'"):
                    async with opened:
                        pass
            assert await ask(logins["stranger"], "SELECT count(*) FROM public.called") == 0
            await ask(logins["stranger"], f"DROP FUNCTION public.{signature}")

        async def make() -> None:
            async with stores.metadata(logins["owner"]):
                pass

        stores.run(make)
        stores.server.run(f"DROP FUNCTION public.{function.name}({types})", stores.database)
        stores.run(test)
        stores.run(make)


async def test_nearer_than_those_of_the_server(stores: Stores, logins: dict[str, str]) -> None:
    """No statement of ours calls a function that imitates one of PostgreSQL."""
    await use(stores, logins["owner"])
    returns = {"cardinality(bigint[])": "integer", "nextval(text)": "bigint", "lpad(text, bigint, text)": "text"}
    await ask(
        logins["stranger"],
        "CREATE TABLE public.called (who text)",
        "GRANT INSERT ON public.called TO PUBLIC",
        *(PLACED.format(signature=one, returns=returns.get(one, "void").replace("void", "text")) for one in NEARER),
    )
    await use(stores, logins["owner"])
    assert await ask(logins["stranger"], "SELECT count(*) FROM public.called") == 0


async def test_an_overload_that_comes_later(stores: Stores, logins: dict[str, str]) -> None:
    """An overload of one of our functions, created after the store was opened, is not called."""
    url = logins["owner"]
    async with stores.metadata(url) as store, stores.ledgers(url) as ledgers:
        ledger = await ledgers.create("one")
        await ask(
            logins["stranger"],
            "CREATE TABLE public.called (who text)",
            "GRANT INSERT ON public.called TO PUBLIC",
            *(
                PLACED.format(signature=f"{one.name}({', '.join(['text'] * len(one.types))})", returns="text")
                for one in OURS
            ),
        )
        await reconnect(stores, store)
        await store.apply(Step(puts=(PutSequential(Key("/b"), b"1"),)))
        await ledger.append((Append(b"x"),), None)
        end = (await ledger.tail()).last_confirmed
        assert len(await ledger.read(EntryRange(Position(-1, -1), end), Limit(9, 99))) == 1
        assert await ask(logins["stranger"], "SELECT count(*) FROM public.called") == 0


def test_another_body(stores: Stores, logins: dict[str, str]) -> None:
    """A function of ours with another body is refused for any owner, and created again once it was dropped."""
    types = ", ".join(READ_ENTRIES.types)

    async def make() -> None:
        await use(stores, logins["owner"])

    async def refused() -> None:
        with pytest.raises(InvalidInput, match="not the function of this release"):
            await make()

    stores.run(make)
    stores.server.run(
        f"UPDATE pg_proc SET prosrc = replace(prosrc, 'room < 0', 'room < 1') WHERE proname = '{READ_ENTRIES.name}'",
        stores.database,
    )
    stores.run(refused)
    stores.server.run(f"DROP FUNCTION public.{READ_ENTRIES.name}({types})", stores.database)
    stores.run(make)


async def test_a_schema_that_comes_later(stores: Stores, logins: dict[str, str]) -> None:
    """A later schema with the user's name, which PostgreSQL searches first, is not used by the open store."""
    async with stores.metadata(logins["owner"]) as store:
        await store.put(Put(Key("/a"), b"1", Expect.ABSENT))
        stores.server.run(
            "CREATE SCHEMA owner; CREATE TABLE owner.records AS TABLE public.records WITH NO DATA;"
            " GRANT ALL ON SCHEMA owner TO PUBLIC; GRANT ALL ON owner.records TO PUBLIC",
            stores.database,
        )
        await reconnect(stores, store)
        found = await store.get(Key("/a"))
        assert found is not None
        assert found.value == b"1"
