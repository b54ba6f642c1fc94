"""
The command line, behind the extra ``cli``.

``main`` is the console script. click and rich are imported when it runs, so that a program that only uses the
library needs neither, and one that lacks them says what to install.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run the command line and return its exit status: 0 done, 1 a check did not hold, 2 something typed was wrong.

    :param arguments: what was typed after the program's name; None: what this process was started with.
    """
    try:
        from txnframework.cli._app import run
        from txnframework.cli.terminal import make_output_safe
    except ModuleNotFoundError as exc:
        if exc.name not in ("click", "rich"):
            raise
        sys.stderr.write(
            f"Error: the command line needs {exc.name}, which is not installed: pip install 'txnframework[cli]'\n"
        )
        return 2
    if arguments is not None:
        return run(list(arguments))
    # For the life of this process: what an exception that nobody expected says is printed after this.
    make_output_safe()
    return run(sys.argv[1:])
