"""A deployment is copied to other stores, and goes on there as if nothing had happened."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from copied_deployment import Deployments, Scene, urls

from txnframework.broker import CopyRequest, copy_stores
from txnframework.errors import DeploymentClosed, InvalidInput, Unavailable

if TYPE_CHECKING:
    from conftest import ServerStores, Stores


@pytest.mark.families
@pytest.mark.parametrize("end", ["commit", "abort"])
@pytest.mark.parametrize(("source", "target"), [("memory", "sqlite"), ("sqlite", "memory"), ("sqlite", "sqlite")])
async def test_work_goes_on(sqlite: Stores, tmp_path: Path, source: str, target: str, end: str) -> None:
    """The copy and a source that was kept show the same, and are used from then on without each other."""
    scene = Scene()
    both = Deployments(sqlite.registry, urls(source, "source", tmp_path), urls(target, "target", tmp_path))

    async with both.open("source") as client:
        await scene.play(client)
    report = await both.copy(keep_source=True)
    assert report.audit is not None
    assert (report.audit.differing, report.audit.entries) == (0, report.entries)
    assert not (await both.audit()).differing
    seen = []
    for name in ("source", "target"):
        async with both.open(name) as client:
            seen.append(await scene.observe(client, end))
    assert seen[0] == seen[1]
    assert (await both.audit()).differing


async def test_only_one_of_the_two_can_be_used(sqlite: Stores, tmp_path: Path) -> None:
    """A source that was copied is closed until an operator opens it again; a repeated copy changes nothing."""
    both = Deployments(sqlite.registry, urls("sqlite", "source", tmp_path), urls("sqlite", "target", tmp_path))

    async with both.open("source") as client:
        await client.create_topic("orders")
        await (await client.producer("orders")).send(b"1")
    planned = await both.copy(dry_run=True)
    assert (planned.entries, planned.audit) == (1, None)
    async with both.open("source") as client, both.open("target") as other:
        assert await sqlite.read(client, "orders") == [b"1"]
        assert other.host.metadata.identity != client.host.metadata.identity
    report = await both.copy()
    await both.refuses("source")
    async with both.open("target") as client:
        assert await sqlite.read(client, "orders") == [b"1"]
        assert client.host.metadata.identity == report.identity
    assert (await both.copy()).was_complete
    with pytest.raises(InvalidInput, match="is the metadata store of both"):
        await copy_stores(*[both.loaded()[0]] * 2, CopyRequest(), both.registry, both.clock)
    third = Deployments(both.registry, urls("sqlite", "source", tmp_path), urls("sqlite", "third", tmp_path))
    with pytest.raises(DeploymentClosed):
        await third.copy()
    assert await both.reopen() == report.identity
    with pytest.raises(InvalidInput, match="is not closed"):
        await both.reopen()
    with pytest.raises(InvalidInput, match="was opened again"):
        await both.copy()
    async with both.open("source") as client:
        assert await sqlite.read(client, "orders") == [b"1"]
    mixed = Deployments(
        both.registry,
        {
            "metadata": urls("sqlite", "source", tmp_path)["metadata"],
            "ledger": urls("sqlite", "target", tmp_path)["ledger"],
        },
        urls("sqlite", "fourth", tmp_path),
    )
    await mixed.refuses("source")


async def test_only_the_metadata_is_copied(sqlite: Stores, tmp_path: Path) -> None:
    """Both deployments name one ledger store, and only one of them can be opened at any time."""
    source, target = urls("sqlite", "source", tmp_path), urls("memory", "target", tmp_path)
    both = Deployments(sqlite.registry, source, target | {"ledger": source["ledger"]})
    scene = Scene()

    async with both.open("source") as client:
        await scene.play(client)
    with pytest.raises(InvalidInput, match="cannot be kept"):
        await both.copy(keep_source=True)
    report = await both.copy()
    assert report.ledgers == 0
    await both.refuses("source")
    assert (await both.copy()).was_complete
    with pytest.raises(InvalidInput, match="would lose them"):
        await both.reopen()
    async with both.open("target") as client:
        txn = client.transaction()
        await txn.begin()
        with pytest.raises(Unavailable, match="open: it holds the lease"):
            await both.reopen(with_target=True)
        await txn.abort()
    await both.reopen(with_target=True)
    await both.refuses("target")
    async with both.open("source") as client:
        await scene.observe(client, "commit")


async def test_stores_in_use_are_refused(sqlite: Stores, tmp_path: Path) -> None:
    """While a process has one of the two open, nothing is copied; nor into stores that hold something."""
    both = Deployments(sqlite.registry, urls("sqlite", "source", tmp_path), urls("sqlite", "target", tmp_path))

    async with both.open("source") as client:
        await client.create_topic("orders")
    for name in ("source", "target"):
        async with both.open(name) as client:
            txn = client.transaction()
            await txn.begin()
            with pytest.raises(Unavailable, match="open: it holds the lease"):
                await both.copy()
            await txn.abort()
    async with both.open("target") as client:
        await client.create_topic("other")
    with pytest.raises(InvalidInput, match="is not empty"):
        await both.copy()
    async with both.open("source"), both.open("target"):
        pass


@pytest.mark.parametrize("source", ["postgresql", "sqlite"])
def test_work_goes_on_in_postgresql(postgresql: ServerStores, tmp_path: Path, source: str) -> None:
    """From a file to a database with metadata and messages in one schema each, and back."""
    server = {name: postgresql.in_schema(name).url for name in ("metadata", "ledger")}
    for name in server:
        postgresql.run_sql(f"CREATE SCHEMA {name}")
    check_both(postgresql, server, urls("sqlite", "file", tmp_path), server_first=source == "postgresql")


@pytest.mark.parametrize("source", ["zookeeper", "sqlite"])
def test_work_goes_on_in_zookeeper(zookeeper: Stores, tmp_path: Path, source: str) -> None:
    """From a file to an ensemble, which keeps the metadata, and back."""
    ensemble = {"metadata": zookeeper.url, "ledger": zookeeper.ledger_url}
    check_both(zookeeper, ensemble, urls("sqlite", "file", tmp_path), server_first=source == "zookeeper")


@pytest.mark.parametrize(("source", "target"), [("nats", "sqlite"), ("sqlite", "nats"), ("nats", "nats")])
def test_work_goes_on_in_nats(nats: Stores, tmp_path: Path, source: str, target: str) -> None:
    """From a file to streams with metadata and messages, and back, and to other streams."""
    from txnframework_nats.testing import remove_streams

    places = {"metadata": nats.url, "ledger": nats.url}, dict.fromkeys(("metadata", "ledger"), f"{nats.url}-2")
    file = urls("sqlite", "file", tmp_path)
    both = [place if kind == "nats" else file for kind, place in zip((source, target), places, strict=True)]
    try:
        check_both(nats, *both, server_first=True)
    finally:
        nats.run(remove_streams(f"{nats.url}-2"))


def check_both(stores: Stores, server: dict[str, str], file: dict[str, str], *, server_first: bool) -> None:
    """Copy in one direction; both show the same afterwards."""
    both = Deployments(stores.registry, *((server, file) if server_first else (file, server)))
    scene = Scene()

    async def work() -> None:
        async with both.open("source") as client:
            await scene.play(client)
        report = await both.copy(keep_source=True)
        assert report.audit is not None
        assert not report.audit.differing
        seen = []
        for name in ("source", "target"):
            async with both.open(name) as client:
                seen.append(await scene.observe(client, "commit"))
        assert seen[0] == seen[1]

    stores.run(work())
