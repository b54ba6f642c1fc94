"""A process that copies between files is killed by the system, and another process completes its copy."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from copied_deployment import Deployments, Scene, urls

from txnframework.errors import Unavailable

if TYPE_CHECKING:
    from conftest import Stores

SESSION_TTL_MS = 12_000
COPIER = """
import asyncio, os, signal, sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from copied_deployment import Deployments, urls
from txnframework.broker import CopyRequest, copy_stores
from txnframework.broker.store_copy import digests
from txnframework.model import Limit
from txnframework.plugin import load_plugins

digests.READ, digests.PAGE = Limit(3), 7
directory, left = Path(sys.argv[2]), int(sys.argv[3])
registry = load_plugins()
both = Deployments(registry, urls("sqlite", "source", directory), urls("sqlite", "target", directory))


def show(*_):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)


asyncio.run(copy_stores(*both.loaded(), CopyRequest(), registry, both.clock, show))
"""


@pytest.mark.parametrize("steps", [1, 4, 9, 14, 20])
async def test_killed_by_the_system(sqlite: Stores, tmp_path: Path, steps: int) -> None:
    """Neither deployment can be opened until the copy is complete, and nothing is missing then."""
    both = Deployments(sqlite.registry, urls("sqlite", "source", tmp_path), urls("sqlite", "target", tmp_path))
    scene = Scene()

    async with both.open("source") as client:
        await scene.play(client)
    arguments = [sys.executable, "-c", COPIER, str(Path(__file__).parent), str(tmp_path), str(steps)]
    killed = await asyncio.create_subprocess_exec(*arguments, stderr=subprocess.PIPE)
    _, said = await killed.communicate()
    assert killed.returncode == -signal.SIGKILL, said.decode()
    for name in ("source", "target"):
        await both.refuses(name)
    with pytest.raises(Unavailable, match="another process is copying"):
        await both.copy()
    await both.clock.advance(SESSION_TTL_MS)
    report = await both.copy()
    assert report.audit is not None
    assert not report.audit.differing
    await both.refuses("source")
    async with both.open("target") as client:
        await scene.observe(client, "commit")
