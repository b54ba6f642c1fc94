"""Watches of one store: a commit is compared with few of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from txnframework.environment import SystemEnvironment
from txnframework.model import Expect, Key, Put
from txnframework.model.metadata import IndexEntry, IndexRange, KeyRange
from txnframework_sql import MetadataOptions, _watch, open_metadata_store
from txnframework_sql.steps.statements import Change, Target, concerns

MANY = 300


async def test_a_commit_is_compared_with_few_watches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Watches on other records and other indexes cost a commit nothing, and those that it concerns wake."""
    compared: list[Target] = []

    def counted(target: Target, change: Change) -> bool:
        compared.append(target)
        return concerns(target, change)

    store = await open_metadata_store(f"sqlite:///{tmp_path}/txn.db", SystemEnvironment(), MetadataOptions())
    try:
        others = [await store.watch(Key(f"/other/{number}")) for number in range(MANY)]
        others += [await store.watch(IndexRange("other", b"a", b"z")) for _ in range(MANY)]
        concerned = [
            await store.watch(Key("/mine")),
            await store.watch(KeyRange("/m", "/n")),
            await store.watch(IndexRange("mine", b"a", b"z")),
        ]
        waiting = [asyncio.ensure_future(watch.changed()) for watch in concerned]
        monkeypatch.setattr(_watch, "concerns", counted)
        await store.put(Put(Key("/mine"), b"x", Expect.ABSENT, (IndexEntry("mine", b"k"),)))
        await asyncio.gather(*waiting)
        assert len(compared) == len(concerned)
        for watch in (*others, *concerned):
            await watch.close()
        await store.put(Put(Key("/mine"), b"y", Expect.ANY, (IndexEntry("mine", b"k"),)))
        assert len(compared) == len(concerned)
    finally:
        await store.close()
