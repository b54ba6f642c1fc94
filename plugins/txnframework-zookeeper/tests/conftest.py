"""A chroot of its own for every test, on a real server."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from txnframework.environment import SystemEnvironment
from txnframework_zookeeper._metadata_store import ZooKeeperMetadataStore, open_metadata_store
from txnframework_zookeeper._options import MetadataOptions
from txnframework_zookeeper.testing.servers.zookeeper import ZooKeeper as Ensemble
from txnframework_zookeeper.testing.servers.zookeeper import shared_hosts


@pytest.fixture
def url() -> str:
    """A place that is not there yet, with no node above it that one login may own, on a server that others use."""
    return f"zookeeper://{shared_hosts()}/tests-{secrets.token_hex(8)}"


@pytest.fixture
def options() -> MetadataOptions:
    """The options of the clients; a test names others as a parameter."""
    return MetadataOptions()


@pytest.fixture
async def store(url: str, options: MetadataOptions) -> AsyncIterator[ZooKeeperMetadataStore]:
    store = await open_metadata_store(url, SystemEnvironment(), options)
    yield store
    await store.close()


@pytest.fixture
async def other(url: str, options: MetadataOptions) -> AsyncIterator[ZooKeeperMetadataStore]:
    """Another client of the same store."""
    store = await open_metadata_store(url, SystemEnvironment(), options)
    yield store
    await store.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Ensemble]:
    """A server of the test's own, to pause and to kill."""
    with Ensemble(tmp_path) as ensemble:
        yield ensemble


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """Three servers, which the tests of a module leave as they found them."""
    with Ensemble(tmp_path_factory.mktemp("ensemble"), servers=3) as ensemble:
        yield ensemble
