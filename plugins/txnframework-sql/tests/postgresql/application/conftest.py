"""Every kind of connection of an application, and one database for all tests that break nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Any

import pytest
from application_connections import KINDS, Application, Way, asked

from txnframework.environment import SystemEnvironment
from txnframework.model import Key
from txnframework_sql import LedgerOptions, MetadataOptions, open_ledger_store, open_metadata_store
from txnframework_sql.testing.servers.databases import fresh_database

PATIENCE_S = 120
_numbers = count()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    """Return what opens a connection of one kind."""
    return KINDS[request.param]


@pytest.fixture(scope="session")
def _url() -> Iterator[str]:
    with fresh_database() as url:
        asyncio.run(_make(url))
        yield url


@pytest.fixture
def database(_url: str) -> str:
    """Return the URL of the database."""
    return _url


async def _make(url: str) -> None:
    # The store comes first: it refuses the tables of another program.
    await (await open_metadata_store(url, SystemEnvironment(), MetadataOptions())).close()
    await asked(url, "CREATE TABLE mine (id serial PRIMARY KEY, text text NOT NULL)")


@pytest.fixture(params=[Way.PUT, Way.STEP], ids=lambda way: way.name.lower())
def way(request: pytest.FixtureRequest) -> Way:
    """Return how the header is written."""
    found: Way = request.param
    return found


@pytest.fixture
def options() -> dict[str, Any]:
    """The options of the metadata store that are not the default ones."""
    return {}


@pytest.fixture
async def application(_url: str, way: Way, options: dict[str, Any]) -> AsyncIterator[Application]:
    """An application with its own header, and without rows."""
    await asked(_url, "TRUNCATE mine")
    store = await open_metadata_store(_url, SystemEnvironment(), MetadataOptions(**options))
    ledgers = await open_ledger_store(_url, SystemEnvironment(), LedgerOptions(), store.identity)
    try:
        yield Application(_url, store, Key(f"/header/{next(_numbers)}", "t"), way, ledgers)
    finally:
        await ledgers.close()
        await store.close()
