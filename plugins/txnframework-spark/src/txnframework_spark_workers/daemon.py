"""``python -m txnframework_spark_workers.daemon WORKER_MODULE``: Spark starts it instead of ``pyspark.daemon``.

If there is a nursery, the daemon is forked from it: this process passes its streams, environment and arguments, and
waits.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence
from typing import Final

SPARKS_DAEMON: Final = "pyspark.daemon"
STANDARD: Final = (0, 1, 2)
TAKEN: Final = b"+"
LENGTH_BYTES: Final = 4
REQUEST_BYTES_MAX: Final = 4 * 1024 * 1024


def fork_in_nursery(path: str, arguments: Sequence[str], module: str = SPARKS_DAEMON) -> bool:
    """
    Make the nursery at a socket fork a process with this one's streams, environment and arguments, to run ``module``.

    Return True when that process has ended, and False if there is no nursery or the nursery refused.
    """
    request = json.dumps({"module": module, "arguments": list(arguments), "environment": dict(os.environ)}).encode()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as nursery:
            nursery.connect(path)
            socket.send_fds(nursery, [len(request).to_bytes(LENGTH_BYTES, "big")], STANDARD)
            nursery.sendall(request)
            if nursery.recv(len(TAKEN)) != TAKEN:
                return False
            # Spark reads the daemon's output to its end, and closes its input; so this process closes its copies.
            os.close(0)
            os.close(1)
            # The daemon and its workers keep the other end open until the last of them has ended.
            nursery.recv(1)
            return True
    except OSError:
        return False


def main() -> None:
    """Run the daemon, in this process or in one that a nursery forks; return when it has ended."""
    from txnframework_spark_workers import NURSERY

    path = os.environ.get(NURSERY)
    if path:
        # As pyspark.daemon does: an interrupt from the terminal is meant for the driver.
        os.setpgid(0, 0)
        if fork_in_nursery(path, sys.argv):
            # Standard input and output now belong to the daemon: nothing may be flushed into them.
            os._exit(0)
    from txnframework_spark_workers.preload import preload_modules

    preload_modules()
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
