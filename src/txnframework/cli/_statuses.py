"""The exit statuses of commands."""

from __future__ import annotations

STATUS_DONE = 0
STATUS_FAILED = 1
STATUS_INVALID_INPUT = 2
STATUS_INTERRUPTED = 130
"""128 and the number of SIGINT, as of a program that the signal ended."""
