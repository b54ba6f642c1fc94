"""After any failure on the database's thread, every caller gets an answer."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import threading
from collections.abc import Callable
from typing import NoReturn

import pytest

from txnframework.environment import SystemEnvironment
from txnframework.errors import OutcomeUnknown, Unavailable
from txnframework.model import Expect, Key, Put
from txnframework_sql import MetadataOptions, SqlMetadataStore, open_metadata_store
from txnframework_sql.sqlite._connection import SqliteConnection
from txnframework_sql.steps.statements import Steps

KEY = Key("/a")
PATIENCE_S = 60
"""Only a hang takes longer; a disk that others write to may take seconds."""


async def opened(url: str, kind: type[SqliteConnection] = SqliteConnection) -> SqlMetadataStore:
    """Open the records."""
    return await open_metadata_store(url, SystemEnvironment(), MetadataOptions(), kind)


async def put(store: SqlMetadataStore) -> None:
    """Write a record, within a time that only a hang exceeds."""
    await asyncio.wait_for(store.put(Put(KEY, b"", Expect.ANY)), PATIENCE_S)


async def test_file_system_without_locks(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If files cannot be locked, writes continue without the fairness lock."""

    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.ENOLCK, "no locks")

    store = await opened(url)
    monkeypatch.setattr(fcntl, "flock", refuse)
    await put(store)
    await put(store)
    await store.close()


async def test_turn_of_a_stopped_process(url: str) -> None:
    """
    A process that was stopped while it holds the fairness lock blocks no other: only the database's lock excludes.
    """
    store = await opened(url)
    turn = os.open(f"{url.removeprefix('sqlite:///')}-turn", os.O_RDWR | os.O_CREAT)
    fcntl.flock(turn, fcntl.LOCK_EX)
    await put(store)
    os.close(turn)
    await store.close()


def test_loop_closed_during_a_commit(url: str) -> None:
    """A watch whose loop is closed while a commit is reported to it does not disturb the others."""
    abandoned = asyncio.new_event_loop()
    first = abandoned.run_until_complete(opened(url))
    abandoned.run_until_complete(first.watch(KEY))
    is_closed: Callable[[], bool] = abandoned.is_closed

    def close_behind_the_look() -> bool:
        if threading.current_thread().name == "txnframework-sql" and not is_closed():
            abandoned.close()
            return False
        return is_closed()

    async def main() -> None:
        abandoned.is_closed = close_behind_the_look  # type: ignore[method-assign]
        store = await opened(url)
        await put(store)
        abandoned.is_closed = is_closed  # type: ignore[method-assign]
        abandoned.close()
        await put(store)
        assert await asyncio.wait_for(store.get(KEY), PATIENCE_S) is not None
        await store.close()

    asyncio.run(main())
    asyncio.run(first.close())


class Broken(SqliteConnection):
    """A connection that raises an error which no database raises."""

    error: BaseException | None = None

    def begin_read(self) -> None:
        """Begin, unless told to raise."""
        if self.error is not None:
            raise self.error
        super().begin_read()

    def commit(self) -> None:
        """Commit, unless told to raise."""
        if self.error is not None:
            raise self.error
        super().commit()


async def test_unexpected_error(url: str) -> None:
    """An unexpected error is reported to its caller, as an unknown outcome for a write, and the thread continues."""

    class Kind(Broken):
        pass

    store = await opened(url, Kind)
    Kind.error = ZeroDivisionError()
    with pytest.raises(OutcomeUnknown):
        await put(store)
    with pytest.raises(Unavailable):
        await asyncio.wait_for(store.get(KEY), PATIENCE_S)
    Kind.error = None
    await put(store)
    await store.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_end_of_the_thread(url: str) -> None:
    """After the end of the thread, later calls are refused, and the next opening starts a new thread."""

    class Kind(Broken):
        pass

    def end() -> Steps[NoReturn]:
        raise GeneratorExit

    store = await opened(url, Kind)
    with pytest.raises(OutcomeUnknown):
        await asyncio.wait_for(store.database.write(end), PATIENCE_S)
    with pytest.raises(Unavailable):
        await put(store)
    again = await asyncio.wait_for(opened(url, Kind), PATIENCE_S)
    await put(again)
    await again.close()
    await asyncio.wait_for(store.close(), PATIENCE_S)
