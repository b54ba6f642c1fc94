"""Errors that only pipelines raise."""

from __future__ import annotations

from txnframework.errors import Conflict


class PipelineFailed(Conflict):
    """The query of pipeline ``name`` failed for ``reason``; its current batch was not committed."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(f"pipeline {name} has failed: {reason}")
