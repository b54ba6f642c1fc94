"""Errors of jobs."""

from __future__ import annotations

from txnframework.errors import Conflict, InvalidInput


class JobFailed(Conflict):
    """A task of a job failed; the message is its last line of output. Nothing of the job is visible."""


class ExportInTheWay(Conflict):
    """Another export to ``folder`` finished first; nothing of this one is visible."""

    def __init__(self, folder: str, number: int) -> None:
        self.folder = folder
        self.number = number
        super().__init__(
            f"another export to {folder} finished number {number} first; nothing of this one is visible, run it again"
            " for what is left"
        )


class UnusableFolder(InvalidInput):
    """``folder`` cannot be used for exports."""

    def __init__(self, folder: str, reason: str) -> None:
        self.folder = folder
        super().__init__(f"{folder} {reason}")


class StoresUnnamed(InvalidInput):
    """A job on a cluster has no configuration file that it could send to its tasks."""

    def __init__(self, master: str) -> None:
        self.master = master
        super().__init__(
            f"tasks on {master} need to know where the stores are: name a configuration with --config, whose stores all"
            " machines can reach"
        )
