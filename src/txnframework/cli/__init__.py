"""
The command line; it needs the extra ``cli``.

``main`` is the console script. It imports click and rich when it runs: a program that only uses the library needs
neither. If one of them is missing, the error says what to install.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from txnframework.cli._statuses import STATUS_INTERRUPTED, STATUS_INVALID_INPUT

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run the command line and return its exit status: 0 success, 1 failure or a negative result, 2 invalid usage.

    130: it was interrupted with Ctrl-C.

    :param arguments: the arguments after the program's name; None: those of this process.
    """
    try:
        return _run(arguments)
    except KeyboardInterrupt:  # Ctrl-C while the imports of the program run
        sys.stderr.write("Interrupted.\n")
        return STATUS_INTERRUPTED


def _run(arguments: Sequence[str] | None = None) -> int:
    try:
        from txnframework.cli._app import run
        from txnframework.cli._safe_stream import make_output_safe
    except ModuleNotFoundError as exc:
        if exc.name not in ("click", "rich"):
            raise
        sys.stderr.write(
            f"Error: the command line needs {exc.name}, which is not installed: pip install 'txnframework[cli]'\n"
        )
        return STATUS_INVALID_INPUT
    if arguments is not None:
        return run(list(arguments))
    # For the life of this process: the traceback of an uncaught exception is printed after this function.
    make_output_safe()
    return run(sys.argv[1:])
