"""The page about shared entries is true: its steps, for enabling and disabling, work as written."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import txnframework
from txnframework.cli import main

DOCS = Path(__file__).parents[2] / "docs"
INVOICES = "persistent://public/default/invoices"
FORGOTTEN_AT_ONCE = "[transactions]\nretention_ms = 0\nmax_clock_skew_ms = 0\ncoordinators = 1\n"


def test_up_and_down(
    tmp_path: Path,
    run_page: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every command prints what the page says; in the end all is there, and nothing that is batched."""
    pytest.importorskip("txnframework_legacy")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "txnframework.toml").write_text(FORGOTTEN_AT_ONCE)
    shutil.copy(DOCS / "examples" / "many_invoices.py", tmp_path)
    run_page(DOCS / "how-to" / "log-batching.md", {}, shows_all=False)
    for group, logs in (("log-batching", "coordinators"), ("pending-ack-batching", "subscriptions")):
        assert main(["transaction", group, "status", "--output", "json"]) == 0
        (log,) = json.loads(capsys.readouterr().out)[logs]
        assert (log["enabled"], log["batched_entries"]) == (False, 0)
    assert asyncio.run(invoices()) == {f"invoice for order {number}".encode() for number in range(64)}


def test_batches_are_what_the_page_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While batched entries are left, the check that the page waits for does not hold."""
    pytest.importorskip("txnframework_legacy")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "txnframework.toml").write_text(FORGOTTEN_AT_ONCE)
    main(["transaction", "log-batching", "enable"])
    asyncio.run(begin(8))
    assert main(["transaction", "log-batching", "disable"]) == 0
    assert "remain" in capsys.readouterr().out
    assert main(["transaction", "log-batching", "status", "--fail-if-batched"]) == 1


async def begin(count: int) -> None:
    """Leave transactions open that began at the same time."""
    async with txnframework.open("txnframework.toml") as client:
        opened = [client.transaction(domain="persistent", outlives_client=True) for _ in range(count)]
        await asyncio.gather(*(txn.begin() for txn in opened))


async def invoices() -> set[bytes]:
    async with txnframework.open("txnframework.toml") as client, await client.reader(INVOICES) as reader:
        return {message.value async for message in reader}
