"""The source of a copy is opened again, and nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from copied_deployment import Deployments, urls

from txnframework.broker import CopyRequest, copy_stores
from txnframework.errors import InvalidInput

if TYPE_CHECKING:
    from conftest import Stores


class KilledError(BaseException):
    """The process was killed."""


async def fill(both: Deployments) -> None:
    async with both.open("source") as client:
        await client.create_topic("orders")
        await (await client.producer("orders")).send(b"1")


async def interrupt(both: Deployments) -> None:
    """Leave a copy that is not complete."""

    def die(*_: object) -> None:
        raise KilledError

    with pytest.raises(KilledError):
        await copy_stores(*both.loaded(), CopyRequest(), both.registry, both.clock, die)


async def test_ledgers_of_the_copy_are_not_given_to_the_source(sqlite: Stores, tmp_path: Path) -> None:
    """An operator who names the old metadata with the new ledgers takes nothing from the copy."""
    source, target = urls("sqlite", "source", tmp_path), urls("sqlite", "target", tmp_path)
    both = Deployments(sqlite.registry, source, target)
    mixed = Deployments(sqlite.registry, source | {"ledger": target["ledger"]}, target)

    await fill(both)
    report = await both.copy()
    with pytest.raises(InvalidInput, match="and not those of"):
        await mixed.reopen()
    async with both.open("target") as client:
        assert await sqlite.read(client, "orders") == [b"1"]
    assert await both.reopen() == report.identity


@pytest.mark.parametrize("is_shared", [False, True])
async def test_the_target_of_an_incomplete_copy(sqlite: Stores, tmp_path: Path, is_shared: bool) -> None:
    """It stays closed; its source is opened without it, and the copy cannot be completed then."""
    source, target = urls("sqlite", "source", tmp_path), urls("sqlite", "target", tmp_path)
    if is_shared:
        target["ledger"] = source["ledger"]
    both = Deployments(sqlite.registry, source, target)
    turned = Deployments(sqlite.registry, target, source)

    await fill(both)
    await interrupt(both)
    with pytest.raises(InvalidInput, match="is the target of the copy"):
        await turned.reopen()
    await both.refuses("target")
    await both.reopen()
    async with both.open("source") as client:
        assert await sqlite.read(client, "orders") == [b"1"]
    with pytest.raises(InvalidInput, match="was opened again"):
        await both.copy()


async def test_another_configuration_than_that_of_the_copy(sqlite: Stores, tmp_path: Path) -> None:
    """Shared ledgers are not taken from a copy by naming a deployment that is at rest anyway."""
    source, target = urls("sqlite", "source", tmp_path), urls("sqlite", "target", tmp_path)
    both = Deployments(sqlite.registry, source, target | {"ledger": source["ledger"]})
    wrong = Deployments(sqlite.registry, source, urls("sqlite", "other", tmp_path))

    await fill(both)
    await both.copy()
    with pytest.raises(InvalidInput, match="is not the copy"):
        await wrong.reopen(with_target=True)
    async with both.open("target") as client:
        assert await sqlite.read(client, "orders") == [b"1"]
