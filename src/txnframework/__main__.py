"""``python -m txnframework``: the same command line as the console script."""

from __future__ import annotations

import sys

from txnframework.cli import main

if __name__ == "__main__":
    sys.exit(main())
