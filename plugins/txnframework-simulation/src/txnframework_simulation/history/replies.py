"""What clients are told."""

from __future__ import annotations

import msgspec

from txnframework_simulation.history.values import Place, Seen


class _Reply(msgspec.Struct, frozen=True, tag=True, tag_field="told", gc=False):
    """Says by the name of its class what was told."""


class Done(_Reply, frozen=True):
    """It is done, and there is nothing more to say."""


class Begun(_Reply, frozen=True):
    """A transaction has begun."""

    txn: str


class Joined(_Reply, frozen=True):
    """The number of one's own branch."""

    branch: int


class Sent(_Reply, frozen=True):
    """The message stands here."""

    place: Place


class Outcome(_Reply, frozen=True):
    """The state of a transaction, such as ``COMMITTED``; also what the refusal of a commit or abort told."""

    state: str


class AckFound(_Reply, frozen=True):
    """``PENDING``, ``PENDING_ACK`` (of ``txn``) or ``DELETED``."""

    state: str
    txn: str | None = None


class Received(_Reply, frozen=True):
    """What came, in order."""

    messages: tuple[Seen, ...]


class Changed(_Reply, frozen=True):
    """The segments that now take messages instead."""

    segments: tuple[int, ...]


class Drained(_Reply, frozen=True):
    """
    Everything that was there, in order.

    ``trimmed``: for each segment that was trimmed, the first place that is left; nothing before it can be read.
    """

    messages: tuple[Seen, ...]
    trimmed: tuple[Place, ...] = ()


Reply = Done | Begun | Joined | Sent | Outcome | AckFound | Received | Changed | Drained
