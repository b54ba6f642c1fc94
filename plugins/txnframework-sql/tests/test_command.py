"""``txnframework sql``: what it says of a database, and that only ``upgrade`` changes one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from txnframework.environment import SystemEnvironment
from txnframework.errors import InvalidInput
from txnframework_sql import MetadataOptions, _revisions, open_metadata_store
from txnframework_sql._command import sql
from txnframework_sql.schema import REVISION


def said(*arguments: str) -> str:
    """Run a command; return its one line behind the URL."""
    result = CliRunner().invoke(sql, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    (line,) = result.output.splitlines()
    return line.partition(".db: ")[2]


def test_status_makes_nothing(url: str) -> None:
    """A database that is not there is not made by asking for it."""
    assert said("status", "--url", url) == f"no schema yet; it gets {REVISION} when it is first opened"
    assert not Path(url.removeprefix("sqlite:///")).exists()


def test_upgrade_makes_what_is_opened(url: str) -> None:
    """A database made by the command has an identity, which a second upgrade leaves alone."""
    assert said("upgrade", "--url", url) == f"schema {REVISION} now, none before"

    async def identity() -> str:
        store = await open_metadata_store(url, SystemEnvironment(), MetadataOptions())
        await store.close()
        return store.identity

    before = asyncio.run(identity())
    assert said("upgrade", "--url", url) == f"schema {REVISION}, current; nothing was to be done"
    assert asyncio.run(identity()) == before
    assert said("status", "--url", url) == f"schema {REVISION}, current"


def test_earlier_schema_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database of an earlier release is not upgraded by being opened; the refusal names the command that does it."""
    said("upgrade", "--url", url)
    monkeypatch.setattr(_revisions, "REVISION", "9999")
    with pytest.raises(InvalidInput, match="txnframework sql upgrade"):
        asyncio.run(open_metadata_store(url, SystemEnvironment(), MetadataOptions()))
    assert "earlier release" in said("status", "--url", url)
