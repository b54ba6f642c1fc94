"""The pipeline's processes: a session of its own, so that all of them can be found, and killed, and no others.

A driver is a Python that starts a JVM, which starts Python workers in process groups of their own. All of them stay in
the session that the driver was started in, also after their parents are gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from txnframework_spark.demo.errors import DemoFailed

_GONE_WITHIN_S: Final = 15.0
_WORKERS_LEAVE_WITHIN_S: Final = 3.0
_LOOK_EVERY_S: Final = 0.05
_JVM: Final = "java"


@dataclass(frozen=True, slots=True)
class Found:
    """A living process of a session."""

    pid: int
    name: str


@dataclass(frozen=True, slots=True)
class Killed:
    """Who got SIGKILL: the driver's Python, its JVM, and workers that did not leave by themselves after that."""

    python: int
    jvm: tuple[int, ...]
    workers: tuple[int, ...]


class Driver:
    """A running pipeline. It leaves by itself when the demo is gone: its standard input is then at its end."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, with arguments of our own
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The driver's Python, which gives the session its number."""
        return self._process.pid

    def status(self) -> int | None:
        """Return the exit status, or None while it runs."""
        return self._process.poll()

    def kill(self) -> Killed:
        """Give SIGKILL to Python and JVM at once; return when no process of theirs is left. DemoFailed if one stays."""
        jvm = tuple(found.pid for found in living(self.pid) if found.name == _JVM)
        for pid in (self.pid, *jvm):
            _send_kill(pid, self.pid)
        self._close()
        self._wait_until_gone(_WORKERS_LEAVE_WITHIN_S)
        workers = tuple(found.pid for found in living(self.pid))
        for pid in workers:
            _send_kill(pid, self.pid)
        if not self._wait_until_gone(_GONE_WITHIN_S):
            raise DemoFailed(f"processes of the pipeline outlived SIGKILL: {living(self.pid)}")
        return Killed(self.pid, jvm, workers)

    def _wait_until_gone(self, within_s: float) -> bool:
        deadline = time.monotonic() + within_s
        while living(self.pid):
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_EVERY_S)
        return True

    def _close(self) -> None:
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()


def living(session: int) -> tuple[Found, ...]:
    """Return the processes of a session that are alive; the dead whom nobody has buried do not count."""
    found = (_look_at(pid) for pid in _all_pids() if _session_of(pid) == session)
    return tuple(process for process in found if process is not None)


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _send_kill(pid: int, session: int) -> None:
    # A number may have been given to somebody else since it was looked up.
    if _session_of(pid) == session:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


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
