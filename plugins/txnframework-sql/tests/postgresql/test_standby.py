"""A standby shows confirmed writes only later, so stores do not read from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from txnframework.errors import Unavailable
from txnframework.model import Expect, Key, Put
from txnframework_sql.testing.servers.postgresql import USER, PostgresServer

if TYPE_CHECKING:
    from conftest import Stores

KEY = Key("/a")


@pytest.fixture
def standby(stores: Stores) -> Iterator[PostgresServer]:
    """Run a server in permanent recovery with the same login, readable and without a primary."""
    with PostgresServer() as server:
        server.create_database(stores.database)
        password = urlsplit(stores.url).password or ""
        server.run(f"ALTER ROLE {USER} PASSWORD '{password}'")
        server._password = password
        server.stop()
        (server.directory / "data" / "standby.signal").touch()
        server.start()
        yield server


async def test_it_is_refused(standby: PostgresServer, stores: Stores) -> None:
    """A standby alone is refused with the remedy; before a primary it is skipped."""
    alone = standby.url_of(stores.database)
    both = stores.url.replace("@", f"@127.0.0.1:{standby.port},")

    with pytest.raises(Unavailable, match=r"is a standby.*name the primary"):
        async with stores.metadata(alone):
            pass
    async with stores.metadata(both) as store, stores.metadata() as other:
        await other.put(Put(KEY, b"one", Expect.ABSENT))
        record = await store.get(KEY)
        assert record is not None
        assert record.value == b"one"
