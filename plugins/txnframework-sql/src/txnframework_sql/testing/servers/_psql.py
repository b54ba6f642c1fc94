"""SQL through ``psql``: the administration of a server needs no driver."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit


def run_sql(psql: Path, url: str, *statements: str) -> str:
    """Run statements one by one; return their output, with columns separated by ``|``."""
    split = urlsplit(url)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    # Not as an argument: every user of the machine can read the arguments.
    environment["PGPASSWORD"] = split.password or ""
    address = f"{split.username}@{split.hostname}" + (f":{split.port}" if split.port else "")
    address = urlunsplit(split._replace(netloc=address))
    command = [str(psql), "-XqAt", "-v", "ON_ERROR_STOP=1", address]
    for statement in statements:
        command += ["-c", statement]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)  # noqa: S603
    if done.returncode:
        raise OSError(f"{'; '.join(statements)}: {done.stderr.strip()}")
    return done.stdout.strip()
