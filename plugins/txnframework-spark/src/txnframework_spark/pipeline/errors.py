"""What only pipelines of a file raise."""

from __future__ import annotations

from txnframework.errors import Conflict, InvalidInput


class PipelineFailed(Conflict):
    """The query of pipeline ``name`` has ended by itself, for ``reason``; the batch under way was not committed."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(f"pipeline {name} has failed: {reason}")


class StoresUnnamed(InvalidInput):
    """A pipeline on a cluster says nothing of its stores, and each machine would make some of its own."""

    def __init__(self, master: str) -> None:
        super().__init__(
            f"[stores] is missing: on {master}, driver and executors would each look for the stores in a folder of"
            " their own; name a configuration file, or URLs that all of them reach"
        )
