"""A connection pooler between the stores and the server keeps sessions, or it is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg
import pytest
from pooler import Pooler

from txnframework.errors import InvalidInput, Unavailable
from txnframework.model import Append, Expect, Key, Put
from txnframework_sql.postgresql import _pooler

if TYPE_CHECKING:
    from conftest import Stores

SCHEMA = "?options=-csearch_path%3D"


def test_kept_sessions(stores: Stores) -> None:
    """The schema of each URL is used through a pooler that accepts no parameters, and everything works."""
    for name in ("orders", "billing"):
        stores.server.run(f"CREATE SCHEMA {name}", stores.database)

    async def test() -> None:
        async with Pooler(stores.url, "session").listening() as url:
            for name in ("orders", "billing"):
                async with (
                    stores.metadata(f"{url}{SCHEMA}{name}") as store,
                    stores.ledgers(f"{url}{SCHEMA}{name}") as ledgers,
                ):
                    watch = await store.watch(Key("/a"))
                    await store.put(Put(Key("/a"), name.encode(), Expect.ABSENT))
                    await watch.changed()
                    await (await store.acquire_lease("mine", "me")).release()
                    await (await ledgers.create("one")).append((Append(b"data"),), None)
        found = "SELECT string_agg(schemaname, ' ' ORDER BY schemaname) FROM pg_tables WHERE tablename = 'records'"
        assert stores.server.run(found, stores.database) == "billing orders"
        for name in ("orders", "billing"):
            async with stores.metadata(f"{stores.url}{SCHEMA}{name}") as direct:
                record = await direct.get(Key("/a"))
                assert record is not None
                assert record.value == name.encode()

    stores.run(test)


@pytest.mark.parametrize("in_turn", [False, True])
async def test_a_session_for_each_transaction(stores: Stores, in_turn: bool) -> None:
    """A pooler that keeps no sessions is refused; sessions that other programs get next are left as they were."""
    async with Pooler(stores.url, "transaction", in_turn=in_turn).listening() as url:
        for _ in range(3):
            with pytest.raises(InvalidInput, match="pool_mode = session"):
                async with stores.metadata(url):
                    pass
        other = await asyncpg.connect(url)
        async with other.transaction():
            assert await other.fetchval("SHOW search_path") == '"$user", public'
            assert await other.fetchval("SHOW enable_seqscan") == "on"
            # These two and this one.
            assert await other.fetchval("SELECT count(*) FROM pg_prepared_statements") == 3
        await other.close()
    count = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
    assert stores.server.run(count, stores.database) == "0"


async def test_too_few_sessions(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pooler that provides only one session is named as the reason."""
    monkeypatch.setattr(_pooler, "_OTHER_S", 0.2)

    async with Pooler(stores.url, "session", sessions_max=1).listening() as url:
        with pytest.raises(Unavailable, match="raise its pool size"):
            async with stores.metadata(url):
                pass


async def test_a_parameter_that_is_refused(stores: Stores) -> None:
    """Options that are no settings are sent when connecting; a pooler that refuses them is no temporary failure."""
    async with Pooler(stores.url, "session").listening() as url:
        with pytest.raises(InvalidInput, match="unsupported startup parameter: options"):
            async with stores.metadata(f"{url}?options=endpoint%3Dx"):
                pass
