"""The permissions of a database's files."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from txnframework.environment import SystemEnvironment
from txnframework.model import Expect, Key, Put
from txnframework_sql import MetadataOptions, open_metadata_store
from txnframework_sql.sqlite._files import file_system_of, warn_if_log_may_be_reset


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """Set a umask that lets other users read, as on most machines."""
    before = os.umask(0o022)
    yield
    os.umask(before)


async def use(path: Path) -> list[int]:
    """Write to a database; return the modes of its directory and of the files in it, the directory's first."""
    store = await open_metadata_store(f"sqlite:///{path}", SystemEnvironment(), MetadataOptions())
    await store.put(Put(Key("/a"), b"secret", Expect.ANY))
    found = [mode_of(path.parent), *(mode_of(one) for one in sorted(path.parent.iterdir()))]
    await store.close()
    return found


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_new_files_are_this_users_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The database, the other files of SQLite and of this plugin, and every created directory are private."""
    path = tmp_path / "above" / "data" / "txn.db"
    directory, *files = asyncio.run(use(path))
    assert len(files) >= 3, "the database, its log and the log's index"
    assert set(files) == {0o600}
    assert directory == mode_of(path.parent.parent) == 0o700
    assert [one.name for one in path.parent.iterdir() if one.name.startswith(".")] == []
    assert caplog.records == []


def test_what_is_there_stays_as_it_is_and_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Existing modes are not changed, because they may be intended; one warning says what to do."""
    path = tmp_path / "txn.db"
    path.touch(mode=0o644)
    tmp_path.chmod(0o755)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            directory, *files = asyncio.run(use(path))
            assert directory == 0o755
            assert set(files) == {0o644}
    (warning,) = caplog.messages
    assert "can be read by other users" in warning
    assert "chmod 600" in warning


def test_a_private_directory_is_enough(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In a private directory, no other user can read the file, so there is no warning."""
    path = tmp_path / "txn.db"
    path.touch(mode=0o644)
    tmp_path.chmod(0o700)
    asyncio.run(use(path))
    assert caplog.records == []


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/txn.db", "ext4"),
        ("/mnt/share/a/txn.db", "nfs4"),
        ("/mnt/shared/txn.db", "ext4"),
        ("/mnt/two words/txn.db", "cifs"),
    ],
)
def test_the_file_system_of_a_path(path: str, kind: str) -> None:
    """The innermost mount decides, and the later one of two at the same place."""
    mounts = (
        "none / overlay rw 0 0\n/dev/a / ext4 rw 0 0\nhost:/a /mnt/share nfs4 rw 0 0\n"
        "//host/b /mnt/two\\040words cifs rw 0 0\n"
    )
    assert file_system_of(Path(path), mounts) == kind


def test_a_network_file_system_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file on a network file system is opened, and one warning says what can happen."""
    monkeypatch.setattr("txnframework_sql.sqlite._files.file_system_of", lambda *_: "nfs4")
    for _ in range(2):
        asyncio.run(use(tmp_path / "data" / "txn.db"))
    (warning,) = caplog.messages
    assert "network file system (nfs4)" in warning
    assert "use a local disk" in warning


def test_an_old_library_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The warning says what to install; a library without the defect causes no warning."""
    path = tmp_path / "t.db"
    for version in ((3, 51, 3), (3, 52, 0), (3, 51, 2), (3, 40, 1)):
        warn_if_log_may_be_reset(path, f"sqlite:{path}", version)
    (warning,) = caplog.messages
    assert f"sqlite:{path}: SQLite 3.51.2 can damage the file" in warning
    assert "use 3.51.3 or later" in warning
