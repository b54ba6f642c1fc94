"""What only the demo raises."""

from __future__ import annotations

from pathlib import Path

from txnframework.errors import InvalidInput, TxnFrameworkError


class UnusableInput(InvalidInput):
    """The input file cannot be used; ``line`` is the number of the line that is wrong, None if it is the whole file."""

    def __init__(self, path: Path, reason: str, line: int | None = None) -> None:
        self.path = path
        self.reason = reason
        self.line = line
        where = f"{path}, line {line}" if line is not None else str(path)
        super().__init__(f"{where}: {reason}")


class UnusableDirectory(InvalidInput):
    """The demo cannot work in ``path``."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        super().__init__(f"the demo cannot work in {path}: {reason}")


class UnusableStore(InvalidInput):
    """The URL given as ``option`` names no store that can be opened."""

    def __init__(self, option: str, reason: str) -> None:
        self.option = option
        super().__init__(f"{option}: {reason}")


class UnsharedStore(InvalidInput):
    """The store at ``option`` cannot be used by several processes, and the demo is several."""

    def __init__(self, option: str, scheme: str) -> None:
        self.option = option
        super().__init__(
            f"{option}: the store {scheme!r} lives inside one process and the demo has several;"
            " give the URL of one that processes share, or leave the option out for a SQLite file"
        )


class DemoFailed(TxnFrameworkError):
    """The demo could not be carried out to its end; nothing is said about the outputs."""


class PipelineFailed(DemoFailed):
    """The pipeline's process ended by itself with ``status`` although nothing had been done to it."""

    def __init__(self, status: int, last_words: str, log: Path) -> None:
        self.status = status
        self.log = log
        super().__init__(f"the pipeline failed with exit status {status}: {last_words} (its log is {log})")
