"""A deployment of the log family is copied: everything that it knows is in its ledgers."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from copied_deployment import LOG, Deployments, Scene, urls

from txnframework.plugin import load_plugins

if TYPE_CHECKING:
    from conftest import Stores

pytestmark = pytest.mark.log_family

PLUGINS = ("memory", "sql", "metadata", "legacy", "sidecar", "dispatchers")


@pytest.mark.parametrize("buffer", ["marker", "sidecar"])
@pytest.mark.parametrize("end", ["commit", "abort"])
async def test_work_goes_on(stores: Stores, tmp_path: Path, end: str, buffer: str) -> None:
    """Logs, markers, sidecars and pending acknowledgments are ledgers, and are copied like messages."""
    registry = load_plugins([importlib.import_module(f"txnframework_{name}.plugin") for name in PLUGINS])
    scene = Scene("persistent")
    both = Deployments(
        registry,
        urls("sqlite", "source", tmp_path),
        urls("memory", "target", tmp_path),
        domains={"persistent": LOG | {"buffer": buffer}, "segment": LOG},
    )

    async with both.open("source") as client:
        await scene.play(client)
    report = await both.copy(keep_source=True)
    assert report.audit is not None
    assert not report.audit.differing
    seen = []
    for name in ("source", "target"):
        async with both.open(name) as client:
            seen.append(await scene.observe(client, end))
    assert seen[0] == seen[1]
