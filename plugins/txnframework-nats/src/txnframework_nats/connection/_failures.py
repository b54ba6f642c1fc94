"""What a request may end with instead of a reply, beside ``Unavailable``: nothing was sent, or received by a server."""

from __future__ import annotations

import asyncio
from typing import Any

from txnframework.errors import excerpt

WRONG_LAST_SEQUENCE = 10071
"""The subject of a condition has another last sequence number than expected."""

SUBJECT_IN_PROCESS = 10164
"""A message with the subject of a condition is being replicated: the condition cannot be judged yet."""

NO_MESSAGE = 10037
STREAM_NOT_FOUND = 10059
STREAM_NAME_IN_USE = 10058
SUBJECTS_OVERLAP = 10065
NOT_ENABLED = (10076, 10039)
"""JetStream is not enabled on the servers, or not for the account."""


class ReplyLost(Exception):
    """A request was sent, and its reply did not arrive: it may or may not have been applied."""


class RequestRefused(Exception):
    """A server refused a request and changed nothing; ``code`` is JetStream's number of the reason."""

    def __init__(self, code: int, description: str) -> None:
        self.code = code
        self.description = excerpt(description)
        super().__init__(f"{self.description} ({code})")

    @property
    def is_lost_race(self) -> bool:
        """Whether a condition on a subject was not met, or could not be judged yet."""
        return self.code in (WRONG_LAST_SEQUENCE, SUBJECT_IN_PROCESS)


def take_error(task: asyncio.Task[Any]) -> None:
    """Mark the error of a task as seen: its callers may be cancelled, and then it has none."""
    if not task.cancelled():
        task.exception()
