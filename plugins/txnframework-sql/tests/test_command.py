"""``txnframework sql``: its output, and that only ``upgrade`` changes a database."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from txnframework.environment import SystemEnvironment
from txnframework.errors import InvalidInput
from txnframework_sql import MetadataOptions, _revisions, open_metadata_store
from txnframework_sql.command import sql
from txnframework_sql.schema import REVISION


def said(*arguments: str) -> str:
    """Run a command; return its only line, without the URL."""
    result = CliRunner().invoke(sql, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    (line,) = result.output.splitlines()
    return line.partition(".db: ")[2]


def test_status_makes_nothing(url: str) -> None:
    """``status`` does not create a missing database."""
    assert said("status", "--url", url) == f"no schema yet; it gets {REVISION} when it is first opened"
    assert not Path(url.removeprefix("sqlite:///")).exists()


def test_upgrade_makes_what_is_opened(url: str) -> None:
    """A database created by the command has an identity, which a second upgrade does not change."""
    assert said("upgrade", "--url", url) == f"schema {REVISION} now, none before"

    async def identity() -> str:
        store = await open_metadata_store(url, SystemEnvironment(), MetadataOptions())
        await store.close()
        return store.identity

    before = asyncio.run(identity())
    assert said("upgrade", "--url", url) == f"schema {REVISION}, already up to date"
    assert asyncio.run(identity()) == before
    assert said("status", "--url", url) == f"schema {REVISION}, current"


def test_earlier_schema_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening does not upgrade a database of an earlier release; the refusal names the upgrade command."""
    said("upgrade", "--url", url)
    monkeypatch.setattr(_revisions, "REVISION", "9999")
    with pytest.raises(InvalidInput, match="txnframework sql upgrade"):
        asyncio.run(open_metadata_store(url, SystemEnvironment(), MetadataOptions()))
    assert "earlier release" in said("status", "--url", url)
