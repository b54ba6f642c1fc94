"""A read-only database is reported as such."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from txnframework.errors import Unavailable
from txnframework.model import Append, Expect, Key, Put

if TYPE_CHECKING:
    from conftest import Stores

KEY = Key("/a")


@pytest.fixture
def read_only(stores: Stores) -> Iterator[None]:
    """Make the database read-only like a standby, from the next connection on, after some writes."""

    async def write() -> None:
        async with stores.metadata() as store, stores.ledgers() as ledgers:
            await store.put(Put(KEY, b"one", Expect.ABSENT))
            await (await ledgers.create("one")).append((Append(b"one"),), None)

    stores.run(write)
    stores.server.run(f'ALTER DATABASE "{stores.database}" SET default_transaction_read_only = on')
    yield
    stores.server.run(f'ALTER DATABASE "{stores.database}" RESET default_transaction_read_only')


@pytest.mark.usefixtures("read_only")
async def test_what_is_there_can_be_read(stores: Stores) -> None:
    """Opening and reading need no write."""
    async with stores.metadata() as store, stores.ledgers() as ledgers:
        record = await store.get(KEY)
        assert record is not None
        assert record.value == b"one"
        assert (await (await ledgers.open("one")).tail()).last_confirmed.entry_id == 0


@pytest.mark.usefixtures("read_only")
async def test_writing(stores: Stores) -> None:
    """A write raises Unavailable with the reason and the remedy, because it may be possible later."""
    async with stores.metadata() as store, stores.ledgers() as ledgers:
        with pytest.raises(Unavailable, match=r"is read-only.*read_only"):
            await store.put(Put(KEY, b"two", Expect.ANY))
        with pytest.raises(Unavailable, match="is read-only"):
            await (await ledgers.open("one")).append((Append(b"two"),), None)


@pytest.mark.usefixtures("read_only")
async def test_taking_a_lease(stores: Stores) -> None:
    """The start of a session is refused in the same way, and so is its end."""
    with pytest.raises(Unavailable, match="is read-only"):
        async with stores.metadata() as store:
            await store.acquire_lease("name", "one")


def test_making_a_store(stores: Stores) -> None:
    """An empty database in which nothing can be created is refused in the same way."""
    stores.server.run(f'ALTER DATABASE "{stores.database}" SET default_transaction_read_only = on')

    async def test() -> None:
        with pytest.raises(Unavailable, match="is read-only"):
            async with stores.metadata():
                pass

    stores.run(test)
