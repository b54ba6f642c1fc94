"""What a failed query says, in one line: Spark's own text is a page, with the reason somewhere in it."""

from __future__ import annotations

import re

_CLASS = re.compile(r"^(?:txnframework\w*(?:\.\w+)+): (?=.)")
"""The name of one of our own errors before its sentence, as a traceback has it."""


def reason_in(text: str) -> str:
    """Return the line of an error's text that says why: behind Spark's words, the one under a Python traceback."""
    lines = text.splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    # Spark goes on with its plan and the JVM's stack.
    said = (line.strip() for line in lines[frames[-1] + 1 if frames else 0 :] if line.strip() and not line[0].isspace())
    return next(said, "")


def sentence_of(error: BaseException) -> str:
    """Return why, as a person is told: of our own errors the sentence alone, of others with what Spark calls it."""
    reason = reason_in(str(error)) or type(error).__name__
    return _CLASS.sub("", reason).rstrip(";")
