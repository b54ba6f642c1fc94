"""``python -m txnframework_spark_workers.daemon WORKER_MODULE``: Spark starts it instead of ``pyspark.daemon``."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the daemon, in this process or in one that a nursery forks; return when it has ended."""
    from txnframework_spark_workers import NURSERY

    path = os.environ.get(NURSERY)
    if path:
        from txnframework_spark_workers.borrowing import borrow

        # As pyspark.daemon does: an interrupt from the terminal is meant for the driver.
        os.setpgid(0, 0)
        if borrow(path, sys.argv):
            # Standard input and output now belong to the daemon: nothing may be flushed into them.
            os._exit(0)
    from txnframework_spark_workers.ahead import import_ahead

    import_ahead()
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
