"""What went wrong in a job, in one sentence."""

from __future__ import annotations

from txnframework.errors import Conflict, InvalidInput


class JobFailed(Conflict):
    """A task of a job failed; the text is what it said last. Nothing of the job is visible."""


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
    """Exports cannot go to ``folder``."""

    def __init__(self, folder: str, reason: str) -> None:
        self.folder = folder
        super().__init__(f"{folder} {reason}")


class StoresUnnamed(InvalidInput):
    """A job on a cluster has no configuration that its tasks could be given."""

    def __init__(self, master: str) -> None:
        self.master = master
        super().__init__(
            f"tasks on {master} need to know where the stores are: name a configuration with --config, whose stores all"
            " machines can reach"
        )
