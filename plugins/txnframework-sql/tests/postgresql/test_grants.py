"""The rights that ``sql grants`` prints are enough, and no more than that."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from txnframework.errors import InvalidInput
from txnframework.interfaces import IColocatedLedger
from txnframework.model import Append, Check, Expect, IndexEntry, IntendedAppend, Key, Put
from txnframework.model.records import WriteOperation
from txnframework_sql.command import sql

if TYPE_CHECKING:
    from conftest import Stores


@contextmanager
def login(stores: Stores, name: str) -> Iterator[str]:
    """Create a login without rights; yield the URL with it."""
    stores.server.run(f"CREATE ROLE \"{name}\" LOGIN PASSWORD 'secret'", stores.database)
    # As a careful administrator sets a server up: nobody has rights that were not granted.
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
                assert IColocatedLedger.providedBy(ledger)
                await ledger.append_intended(
                    IntendedAppend((Append(b"more"),), header, Key("/b"), (IndexEntry("by", b"k"),), intent)
                )
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
    """A connection that only commits needs two tables and the sequence."""

    async def create() -> None:
        async with stores.metadata():
            pass

    stores.run(create)
    granted = printed("billing", "--url", stores.url, "--commits-only")
    assert granted == [
        'GRANT USAGE ON SCHEMA "public" TO "billing";',
        'GRANT SELECT, INSERT, UPDATE, DELETE ON "public".index_entries, "public".records TO "billing";',
        'GRANT USAGE ON SEQUENCE "public".txnframework_numbers TO "billing";',
    ]


def test_what_cannot_be_granted(stores: Stores) -> None:
    """Before the tables exist, and to a role whose name would end the statement early."""
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
