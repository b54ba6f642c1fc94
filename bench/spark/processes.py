"""The processes of a bench: their programs, processor time and memory, read from ``/proc``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_COMMAND_AFTER = ")"


def descendants() -> Iterator[int]:
    """Yield this process and all processes that descend from it."""
    parents = {int(path.name): int(fields[1]) for path in Path("/proc").glob("[0-9]*") if (fields := _stat(path))}
    for pid in parents:
        at = pid
        while at > 1 and at != os.getpid():
            at = parents.get(at, 0)
        if at == os.getpid():
            yield pid


def cpu_seconds() -> float:
    """Return the processor time of this process and its descendants, with those that they waited for.

    A ratio of processor times hardly depends on what else the machine does, unlike a ratio of elapsed times.
    """
    return sum(sum(map(int, fields[11:15])) for pid in descendants() if (fields := _stat(Path(f"/proc/{pid}")))) / (
        _TICKS_PER_S
    )


def resident_kib(pid: int) -> int:
    """Return the resident memory of a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0)


def command(pid: int) -> str:
    """Return the command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _stat(path: Path) -> list[str]:
    """Return the fields after the name of the program; empty if the process has ended."""
    try:
        return (path / "stat").read_text().rpartition(_COMMAND_AFTER)[2].split()
    except OSError:
        return []
