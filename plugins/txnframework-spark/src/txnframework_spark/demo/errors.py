"""Errors that only the demo raises."""

from __future__ import annotations

from pathlib import Path

from txnframework.errors import InvalidInput, TxnFrameworkError


class UnusableInput(InvalidInput):
    """The input file is invalid; ``line`` is the number of the invalid line, None if the whole file is."""

    def __init__(self, path: Path, reason: str, line: int | None = None) -> None:
        self.path = path
        self.reason = reason
        self.line = line
        where = f"{path}, line {line}" if line is not None else str(path)
        super().__init__(f"{where}: {reason}")


class UnusableDirectory(InvalidInput):
    """``path`` cannot be the demo's working directory."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        super().__init__(f"the demo cannot work in {path}: {reason}")


class UnusableStore(InvalidInput):
    """The URL given as ``option`` does not name a store that can be opened."""

    def __init__(self, option: str, reason: str) -> None:
        self.option = option
        super().__init__(f"{option}: {reason}")


class UnsharedStore(InvalidInput):
    """The store at ``option`` cannot be shared by several processes, which the demo needs."""

    def __init__(self, option: str, scheme: str) -> None:
        self.option = option
        super().__init__(
            f"{option}: the store {scheme!r} lives inside one process and the demo has several;"
            " give the URL of one that processes share, or leave the option out for a SQLite file"
        )


class DemoFailed(TxnFrameworkError):
    """The demo could not be completed; the outputs were not judged."""


class PipelineFailed(DemoFailed):
    """The pipeline's process ended with ``status`` although it was not killed."""

    def __init__(self, status: int, last_words: str, log: Path) -> None:
        self.status = status
        self.log = log
        super().__init__(f"the pipeline failed with exit status {status}: {last_words} (its log is {log})")
