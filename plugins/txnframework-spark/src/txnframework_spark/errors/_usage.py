"""Errors of invalid options, files and stores."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from txnframework.errors import InvalidInput


class InvalidOption(InvalidInput):
    """
    The value of ``option`` of a load or a save is invalid.

    :known: The query did not start.
    :retry: never
    :advice: Correct the option; the text says what is allowed.
    """

    code = "SPARK-101"

    def __init__(self, option: str, reason: str) -> None:
        self.option = option
        self.reason = reason
        super().__init__(f"option {option}: {reason}")


class UnknownOption(InvalidInput):
    """
    ``option`` is not one of ``known``; ``nearest`` is the most similar known name, if any.

    :known: The query did not start.
    :retry: never
    :advice: Correct the name, perhaps to ``nearest``.
    """

    code = "SPARK-102"

    def __init__(self, option: str, known: Iterable[str], where: str) -> None:
        self.option = option
        self.known = tuple(sorted(known))
        by_lower = {name.lower(): name for name in self.known}
        close = get_close_matches(option.lower(), by_lower, n=1)
        self.nearest = by_lower[close[0]] if close else None
        hint = f"did you mean {self.nearest}?" if self.nearest else f"known options: {', '.join(self.known)}"
        super().__init__(f"{where} has no option {option}: {hint}")


class Unsupported(InvalidInput):
    """
    Spark requested something that this format does not support; the message names an alternative.

    :known: Nothing was read or written.
    :retry: never
    :advice: Use the alternative that the text names.
    """

    code = "SPARK-103"


class JavaUnusable(InvalidInput):
    """
    No Java that Spark can run on is installed; ``found`` is the version that was found, if any.

    :known: Spark was not started.
    :retry: never
    :advice: Install Java 17, or set ``JAVA_HOME`` to it.
    """

    code = "SPARK-104"

    def __init__(self, reason: str, found: int | None = None) -> None:
        self.found = found
        super().__init__(reason)


class UnusableFolder(InvalidInput):
    """
    ``folder`` cannot be used for exports.

    :known: Nothing was written.
    :retry: never
    :advice: Name an empty folder, or one that only exports of this topic wrote.
    """

    code = "SPARK-105"

    def __init__(self, folder: str, reason: str) -> None:
        self.folder = folder
        super().__init__(f"{folder} {reason}")


class StoresNotConfigured(InvalidInput):
    """
    A job on a cluster has no configuration file that it could send to its tasks.

    :known: The job did not start.
    :retry: never
    :advice: Pass ``--config`` with stores that all machines can reach.
    """

    code = "SPARK-106"

    def __init__(self, master: str) -> None:
        self.master = master
        super().__init__(
            f"tasks on {master} need the location of the stores: set --config to a configuration whose stores all"
            " machines can reach"
        )
