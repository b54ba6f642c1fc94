"""Discovery and termination of all processes of a Unix session.

A driver is a Python process that starts a JVM, which starts Python workers in their own process groups. All of them
stay in the session in which the first one was started, even after their parents have ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

JVM: Final = "java"
"""The process name of a JVM."""

_LOOK_EVERY_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Found:
    """A living process of a session."""

    pid: int
    name: str


def living(session: int) -> tuple[Found, ...]:
    """Return the living processes of a session; zombie processes do not count."""
    found = (_look_at(pid) for pid in _all_pids() if _session_of(pid) == session)
    return tuple(process for process in found if process is not None)


def send_kill(pid: int, session: int) -> None:
    """Send SIGKILL to a process of the session; do nothing if it has ended."""
    # The system may have reused the pid since it was looked up.
    if _session_of(pid) == session:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_until_gone(session: int, within_s: float) -> bool:
    """Wait until no process of the session is left, at most ``within_s``; return whether none is left."""
    deadline = time.monotonic() + within_s
    while living(session):
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_EVERY_S)
    return True


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _all_pids() -> tuple[int, ...]:
    proc = Path("/proc/self")
    if proc.exists():
        return tuple(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    return tuple(int(line) for line in _ps("-A", "-o", "pid=").splitlines() if line.strip())


def _look_at(pid: int) -> Found | None:
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self").exists():
        try:
            text = stat.read_text(errors="replace")
        except OSError:
            return None
        # "pid (name) state ...", where the name may itself hold parentheses and spaces.
        name, state = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2]
        return None if state in "ZX" else Found(pid, name)
    state, _, command = _ps("-p", str(pid), "-o", "stat=,comm=").strip().partition(" ")
    return None if not state or state.startswith("Z") else Found(pid, Path(command.strip()).name)


def _ps(*arguments: str) -> str:
    return subprocess.run(["ps", *arguments], capture_output=True, text=True, check=False).stdout  # noqa: S603, S607
