"""The suite detects sessions that are not kept alive, and holders that ignore the clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from txnframework.testing import MetadataStoreSuite
from txnframework.testing._suites._base import run_test
from txnframework_sql.sqlite import _database
from txnframework_sql.sqlite._leases import SqliteLeaseSession
from txnframework_sql.testing import SqlMetadataHarness


class NeverKeptAlive(SqliteLeaseSession):
    """Sends a single heartbeat."""

    async def _heartbeat(self) -> None:
        await asyncio.Event().wait()


class NeverKeptAliveAndTrusting(NeverKeptAlive):
    """Sends a single heartbeat, and relies on it permanently."""

    async def _expire(self) -> None:
        await asyncio.Event().wait()


class IgnoresTheClock(SqliteLeaseSession):
    """Relies on its leases until the database reports their loss."""

    async def _expire(self) -> None:
        await asyncio.Event().wait()


class CountsTooLong(SqliteLeaseSession):
    """Relies on its leases for longer than the database keeps them."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._validity.ttl_ms *= 2


BROKEN = [
    (NeverKeptAlive, "test_kept_alive_while_it_is_open"),
    (NeverKeptAliveAndTrusting, "test_kept_alive_while_it_is_open"),
    (IgnoresTheClock, "test_silent_holder_knows_before_others"),
    (CountsTooLong, "test_silent_holder_knows_before_others"),
]


@pytest.mark.parametrize(("part", "name"), BROKEN)
def test_a_session_that_breaks_a_rule_fails_its_test(
    part: type[Any], name: str, must_fail: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly one of the suite's rules of sessions fails."""
    monkeypatch.setattr(_database, "SqliteLeaseSession", part)
    must_fail(MetadataStoreSuite, SqlMetadataHarness, name)


@pytest.mark.parametrize("name", sorted({name for _, name in BROKEN}))
def test_whole_sessions_pass(name: str, tmp_path: Path) -> None:
    """Correct sessions pass, so the failures above are those of the broken part."""
    case = type("Case", (MetadataStoreSuite,), {"harness": SqlMetadataHarness})()
    asyncio.run(run_test(case, getattr(case, name), tmp_path))
