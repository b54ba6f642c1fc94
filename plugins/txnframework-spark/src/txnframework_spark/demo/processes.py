"""The pipeline's processes: a session of its own, so that all of them can be found, and killed, and no others."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from txnframework_spark.demo.errors import DemoFailed
from txnframework_spark.unix_sessions import JVM, living, send_kill, wait_until_gone

_GONE_WITHIN_S: Final = 15.0
_WORKERS_LEAVE_WITHIN_S: Final = 3.0


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
        jvm = tuple(found.pid for found in living(self.pid) if found.name == JVM)
        for pid in (self.pid, *jvm):
            send_kill(pid, self.pid)
        self._close()
        wait_until_gone(self.pid, _WORKERS_LEAVE_WITHIN_S)
        workers = tuple(found.pid for found in living(self.pid))
        for pid in workers:
            send_kill(pid, self.pid)
        if not wait_until_gone(self.pid, _GONE_WITHIN_S):
            raise DemoFailed(f"processes of the pipeline outlived SIGKILL: {living(self.pid)}")
        return Killed(self.pid, jvm, workers)

    def _close(self) -> None:
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
