"""The reason of a failed query in one line: Spark's own text fills a page."""

from __future__ import annotations

import re

_CLASS = re.compile(r"^(?:txnframework\w*(?:\.\w+)+): (?=.)")
"""The class name of one of our own errors before its message, as in a traceback."""


def reason_in(text: str) -> str:
    """Return the line of an error's text that gives the reason: the line after the last frame of a Python traceback."""
    lines = text.splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    # Spark appends its plan and the JVM's stack.
    said = (line.strip() for line in lines[frames[-1] + 1 if frames else 0 :] if line.strip() and not line[0].isspace())
    return next(said, "")


def sentence_of(error: BaseException) -> str:
    """Return the reason for users: the message alone for our own errors, else the message with Spark's error class."""
    reason = reason_in(str(error)) or type(error).__name__
    return _CLASS.sub("", reason).rstrip(";")
