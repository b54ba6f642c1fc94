"""``python -m txnframework_spark_workers.runner MODULE ARGUMENTS``: started in the place of ``python -m MODULE``.

If there is a nursery, the module runs in a process that is forked from it: this process passes its streams,
environment and arguments, and waits. To end a runner, Spark kills this process and closes the socket of the runner,
which ends when it finds the socket closed.
"""

from __future__ import annotations

import os
import runpy
import sys

from txnframework_spark_workers import NURSERY
from txnframework_spark_workers.daemon import fork_in_nursery


def main() -> None:
    """Run the module, in this process or in one that a nursery forks; return when it has ended."""
    _, module, *arguments = sys.argv
    sys.argv[:] = [module, *arguments]
    path = os.environ.get(NURSERY)
    if path and fork_in_nursery(path, sys.argv, module):
        # Standard input and output now belong to the runner: nothing may be flushed into them.
        os._exit(0)
    runpy.run_module(module, run_name="__main__")


if __name__ == "__main__":
    main()
