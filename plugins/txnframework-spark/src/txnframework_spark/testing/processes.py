"""Processes of a Unix session: a driver, its JVM and its Python workers, which can be found and killed together.

A driver is a Python process that starts a JVM, which starts Python workers in their own process groups. All of them
stay in the session in which the first one was started, even after their parents have ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FAILURE: Final = "pipeline failed: "
"""The prefix of the last line of a failed pipeline's log."""

JVM: Final = "java"
"""The process name of a JVM."""

_LOOK_EVERY_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A living process of a session."""

    pid: int
    name: str


def list_processes(session: int) -> tuple[ProcessInfo, ...]:
    """Return the living processes of a session; zombie processes do not count."""
    found = (_look_at(pid) for pid in _all_pids() if _session_of(pid) == session)
    return tuple(process for process in found if process is not None)


def kill_process(pid: int, session: int) -> None:
    """Send SIGKILL to a process of the session; do nothing if it has ended."""
    # The system may have reused the pid since it was looked up.
    if _session_of(pid) == session:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_for_exit(session: int, within_s: float) -> bool:
    """Wait until no process of the session is left, at most ``within_s``; return whether none is left."""
    deadline = time.monotonic() + within_s
    while list_processes(session):
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


def _look_at(pid: int) -> ProcessInfo | None:
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self").exists():
        try:
            text = stat.read_text(errors="replace")
        except OSError:
            return None
        # "pid (name) state ...", where the name may itself hold parentheses and spaces.
        name, state = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2]
        return None if state in "ZX" else ProcessInfo(pid, name)
    state, _, command = _ps("-p", str(pid), "-o", "stat=,comm=").strip().partition(" ")
    return None if not state or state.startswith("Z") else ProcessInfo(pid, Path(command.strip()).name)


def _ps(*arguments: str) -> str:
    return subprocess.run(["ps", *arguments], capture_output=True, text=True, check=False).stdout  # noqa: S603, S607


_GONE_WITHIN_S: Final = 15.0
_WORKERS_LEAVE_WITHIN_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class KilledProcesses:
    """The processes that got SIGKILL: the driver's Python, its JVM, and workers that did not end after that."""

    python: int
    jvm: tuple[int, ...]
    workers: tuple[int, ...]


class DriverProcess:
    """A running pipeline. It ends when this process has ended, because its standard input then ends."""

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
        """The pid of the driver's Python, which is also the number of the session."""
        return self._process.pid

    def status(self) -> int | None:
        """Return the exit status, or None while it runs."""
        return self._process.poll()

    def kill(self) -> KilledProcesses:
        """Send SIGKILL to Python and JVM; return when all processes have ended. RuntimeError if one does not end."""
        jvm = tuple(found.pid for found in list_processes(self.pid) if found.name == JVM)
        for pid in (self.pid, *jvm):
            kill_process(pid, self.pid)
        self._close()
        wait_for_exit(self.pid, _WORKERS_LEAVE_WITHIN_S)
        workers = tuple(found.pid for found in list_processes(self.pid))
        for pid in workers:
            kill_process(pid, self.pid)
        if not wait_for_exit(self.pid, _GONE_WITHIN_S):
            raise RuntimeError(f"processes of the pipeline survived SIGKILL: {list_processes(self.pid)}")
        return KilledProcesses(self.pid, jvm, workers)

    def _close(self) -> None:
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()


def exit_with_parent() -> None:
    """End this process when standard input ends, because the process that started it has then ended."""

    def wait() -> None:
        # Not through sys.stdin: a thread that holds its lock makes the interpreter abort at shutdown.
        while os.read(0, 1024):
            pass
        os._exit(1)

    threading.Thread(target=wait, name="exit-with-parent", daemon=True).start()
