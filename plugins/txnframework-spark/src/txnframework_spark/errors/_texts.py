"""The reason in the text of an error that Spark wrapped."""

from __future__ import annotations

import re

_CLASS = re.compile(r"^(?:txnframework\w*(?:\.\w+)+): (?=.)")
"""The class name of one of our own errors before its message, as in a traceback."""


def extract_reason(text: str) -> str:
    """Return the line of an error's text that gives the reason: the line after the last frame of a Python traceback."""
    lines = text.splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    # Spark appends its plan and the JVM's stack.
    said = (line.strip() for line in lines[frames[-1] + 1 if frames else 0 :] if line.strip() and not line[0].isspace())
    return next(said, "")


def describe_error(error: BaseException) -> str:
    """Return the reason for users: the message alone for our own errors, else the message with Spark's error class."""
    reason = extract_reason(str(error)) or type(error).__name__
    return _CLASS.sub("", reason).rstrip(";")
