"""The rights that ``sql grants`` prints are enough, and no more than that."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import asyncpg
import pytest
from application_connections import asked
from click.testing import CliRunner
from one_step import shop

from txnframework.errors import InvalidInput
from txnframework.model import Append, Check, Expect, IndexEntry, Intent, Key, LedgerAppend, Put, Step
from txnframework.model.records import WriteOperation
from txnframework_sql.command import sql

if TYPE_CHECKING:
    from conftest import Stores


@contextmanager
def login(stores: Stores, name: str) -> Iterator[str]:
    """Create a login without rights; yield the URL with it."""
    stores.server.run(f"CREATE ROLE \"{name}\" LOGIN PASSWORD 'secret'", stores.database)
    # As a careful administrator configures a server: there are no rights that were not granted.
    stores.server.run("REVOKE ALL ON SCHEMA public FROM PUBLIC", stores.database)
    stores.server.run("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA public FROM PUBLIC", stores.database)
    split = urlsplit(stores.url)
    try:
        yield split._replace(netloc=f"{name}:secret@{split.netloc.rpartition('@')[2]}").geturl()
    finally:
        stores.server.run(f'DROP OWNED BY "{name}"; DROP ROLE "{name}"', stores.database)


def printed(*arguments: str) -> list[str]:
    result = CliRunner().invoke(sql, ["grants", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output.splitlines()


def test_what_is_granted_is_enough(stores: Stores) -> None:
    """A login that had no rights reads, writes, takes leases and appends, and creates no table."""

    async def create() -> None:
        async with stores.metadata(), stores.ledgers():
            pass

    stores.run(create)
    name = f"Txn test {secrets.token_hex(4)}"
    arguments = (name, "--url", stores.url)
    assert json.loads("".join(printed(*arguments, "--output", "json"))) == printed(*arguments)
    with login(stores, name) as url:

        async def use() -> None:
            async with stores.metadata(url) as store, stores.ledgers(url) as ledgers:
                await store.put(Put(Key("/a"), b"1", Expect.ABSENT))
                await (await store.acquire_lease("mine", "me")).release()
                ledger = await ledgers.create("segment")
                await ledger.append((Append(b"data"),), None)
                header = Check(Key("/a"), await store.put(Put(Key("/a"), b"2", Expect.ANY)))
                intent = WriteOperation(branch=0, segment="segment", ledger=0, after="0:0")
                announced = Intent(Key("/b"), (IndexEntry("by", b"k"),), intent)
                append = LedgerAppend(ledger.reference, (Append(b"more"),), announced)
                await store.apply(Step(checks=(header,), appends=(append,)))
                await ledger.close()
                await ledgers.delete("segment", None)

        with pytest.raises(InvalidInput, match=r"may not use the schema public.*'txnframework sql grants'"):
            stores.run(use)
        stores.server.run(f'GRANT USAGE ON SCHEMA public TO "{name}"', stores.database)
        with pytest.raises(
            InvalidInput, match=r"required right.*'txnframework sql grants'.*permission denied for table"
        ):
            stores.run(use)
        for statement in printed(name, "--url", stores.url):
            stores.server.run(statement, stores.database)
        stores.run(use)
        may_create = f"SELECT has_schema_privilege('{name}', 'public', 'CREATE')"
        assert stores.server.run(may_create, stores.database) == "f"


def test_less_for_applications(stores: Stores) -> None:
    """A connection that only commits needs what a step writes."""

    async def create() -> None:
        async with stores.metadata():
            pass

    stores.run(create)
    granted = printed("billing", "--url", stores.url, "--commits-only")
    assert granted[:-1] == [
        'GRANT USAGE ON SCHEMA "public" TO "billing";',
        'GRANT SELECT, INSERT, UPDATE, DELETE ON "public".index_entries, "public".records TO "billing";',
        'GRANT SELECT, UPDATE ON "public".ledger_segments, "public".managed_ledgers TO "billing";',
        'GRANT SELECT, INSERT, UPDATE ON "public".highest_txn_numbers TO "billing";',
        'GRANT INSERT ON "public".entries TO "billing";',
        'GRANT USAGE ON SEQUENCE "public".txnframework_numbers TO "billing";',
    ]
    assert granted[-1].startswith('GRANT EXECUTE ON FUNCTION "public".txnframework_apply_steps_')


@pytest.mark.parametrize("is_begun", [False, True])
async def test_a_login_that_only_commits(stores: Stores, is_begun: bool) -> None:
    """With the printed rights its rows and messages are one step; without any of them, nothing takes effect."""
    name = f"clerk {secrets.token_hex(4)}"

    async with shop(stores.url, "orders") as opened:
        with login(stores, name) as url:
            stores.server.run(f'CREATE SCHEMA own AUTHORIZATION "{name}"', stores.database)
            stores.server.run("CREATE TABLE own.mine (text text)", stores.database)
            stores.server.run(f'ALTER TABLE own.mine OWNER TO "{name}"', stores.database)
            order = await opened.order()
            connection = await asyncpg.connect(url)
            granted = await asyncio.to_thread(printed, name, "--url", stores.url, "--commits-only")
            for missing in granted:
                for statement in granted:
                    stores.server.run(statement, stores.database)
                revoked = missing.replace("GRANT", "REVOKE").replace(" TO ", " FROM ")
                stores.server.run(revoked, stores.database)
                if is_begun:
                    await connection.execute("BEGIN; INSERT INTO own.mine VALUES ('row')")
                with pytest.raises(InvalidInput, match="'txnframework sql grants LOGIN --commits-only'"):
                    await opened.bill(order, connection)
                assert await opened.counts() == (0, 1), missing
                if connection.is_in_transaction():
                    await connection.execute("ROLLBACK")
            stores.server.run(missing, stores.database)
            if is_begun:
                await connection.execute("BEGIN; INSERT INTO own.mine VALUES ('row')")
            await opened.bill(order, connection)
            assert await opened.counts() == (1, 0)
            assert await asked(stores.url, "SELECT count(*) FROM own.mine") == is_begun
            await connection.close()


def test_what_cannot_be_granted(stores: Stores) -> None:
    """Grants are refused before the tables exist, and for a role whose name would end the statement early."""
    with pytest.raises(InvalidInput, match="run 'txnframework sql upgrade' first"):
        printed("billing", "--url", stores.url)
    with pytest.raises(InvalidInput, match="SQLite has no logins"):
        printed("billing", "--url", "sqlite:///a.db")

    async def create() -> None:
        async with stores.metadata():
            pass

    stores.run(create)
    for role in ("", 'a"; DROP TABLE records; --'):
        with pytest.raises(InvalidInput, match="invalid role"):
            printed(role, "--url", stores.url)
