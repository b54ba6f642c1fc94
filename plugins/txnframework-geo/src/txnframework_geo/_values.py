"""What to replicate, and what was replicated."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from txnframework.model.names import TopicName

MESSAGES_MIN = 20_000
MESSAGES_MAX = 250_000
"""About how many messages one transaction of the target copies, of a small and of a large backlog."""


class Stage(Enum):
    """What a replicator has just done."""

    TAKEN = "the progress was received"
    READ = "the next cut was determined"
    SENT = "the messages were sent"
    REPLACED = "the next progress was sent"
    COMMITTED = "the transaction was committed"
    RELEASED = "the subscription of the source was moved"


@dataclass(frozen=True, slots=True)
class Replication:
    """
    What to replicate.

    ``topics``: all from one deployment, with the same names in the target. ``name``: there is one replication of a name
    in the target. ``forward``: replicate also messages that came from other deployments. ``messages_min`` and
    ``messages_max``: about how many messages one transaction of the target copies, of a small and of a large backlog.
    """

    topics: tuple[TopicName, ...]
    name: str = "default"
    forward: bool = False
    messages_min: int = MESSAGES_MIN
    messages_max: int = MESSAGES_MAX


@dataclass(frozen=True, slots=True)
class Step:
    """
    One committed transaction of the target.

    ``number`` counts them. ``copied``: the messages that it copied. ``kept``: those that it did not copy because they
    came from another deployment. ``lag_messages``: at most so many messages the target does not have now. ``lag_ms``:
    for how long the first of these has been stored.
    """

    number: int
    copied: int
    kept: int
    lag_messages: int
    lag_ms: int
