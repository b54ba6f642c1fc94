"""Operations of clients: topics have full names; values, keys and transaction ids are text."""

from __future__ import annotations

import msgspec

from txnframework_simulation.history.replies import AckedMessage, MessagePosition


class _Operation(msgspec.Struct, frozen=True, tag=True, tag_field="do", gc=False):
    """Base class of operations; the name of the class is stored."""


class Begin(_Operation, frozen=True):
    """Begin a transaction; ``Begun`` names it."""


class Join(_Operation, frozen=True):
    """Take part in a transaction under a branch of one's own; ``Joined`` says which."""

    txn: str


class Send(_Operation, frozen=True):
    """
    Send one message; ``Sent`` has its position. A call that sends several messages is recorded as several operations.

    ``value`` is unique within a run: it is sent again only to repeat the send, with the same ``producer`` and
    ``sequence`` (None: the producer counts, and the send is never repeated).
    """

    topic: str
    value: str
    key: str | None = None
    txn: str | None = None
    branch: int = 0
    producer: str = ""
    sequence: int | None = None


class Commit(_Operation, frozen=True):
    """Commit; the branches listed count, that of the beginner (0) in any case."""

    txn: str
    branches: tuple[int, ...] = ()


class Abort(_Operation, frozen=True):
    """Abort."""

    txn: str


class AskOutcome(_Operation, frozen=True):
    """Ask what became of a transaction; ``Outcome`` says it."""

    txn: str


class Subscribe(_Operation, frozen=True):
    """Make a subscription, if it is not there; ``start``: ``earliest`` or ``latest``."""

    topic: str
    subscription: str
    start: str


class Unsubscribe(_Operation, frozen=True):
    """Delete a subscription."""

    topic: str
    subscription: str


class Consume(_Operation, frozen=True):
    """
    Join a subscription, making it if it is not there.

    ``consumer`` is unique within a run; joining again makes a new one. ``segment``: only this segment and its
    descendants.
    ``dead_letters``: the topic to which messages go that were redelivered more than ``redeliveries_max`` times.
    """

    topics: tuple[str, ...]
    subscription: str
    consumer: str
    type: str
    start: str
    dead_letters: str | None = None
    redeliveries_max: int = 0
    segment: str | None = None


class Receive(_Operation, frozen=True):
    """Receive; ``Received`` are the messages. ``txn``: on behalf of which transaction, where one is known by then."""

    subscription: str
    consumer: str
    txn: str | None = None


class Acknowledge(_Operation, frozen=True):
    """Acknowledge; ``cumulative``: the one message and everything before it in its segment and those it became of."""

    subscription: str
    consumer: str
    messages: tuple[AckedMessage, ...]
    cumulative: bool = False
    txn: str | None = None
    branch: int = 0


class Redeliver(_Operation, frozen=True):
    """Ask for everything again that a consumer received and did not acknowledge: it has done nothing with that."""

    subscription: str
    consumer: str


class AskAck(_Operation, frozen=True):
    """Ask what became of a message for a subscription; ``AckFound`` says it."""

    subscription: str
    place: MessagePosition


class Leave(_Operation, frozen=True):
    """Close a consumer."""

    subscription: str
    consumer: str


class Seek(_Operation, frozen=True):
    """Move a subscription: ``to`` is ``earliest``, ``latest``, ``message`` (``place`` comes next) or ``time``."""

    topic: str
    subscription: str
    to: str
    place: MessagePosition | None = None


class Read(_Operation, frozen=True):
    """
    Read some messages with a reader; ``Received`` are those that come next in it.

    ``reader`` is unique within a run, and all its reads name the same ``start`` (``earliest``, ``latest`` or
    ``message``) and ``isolation``. ``compacted``: messages may be left out. ``whole``: it was opened for this call, and
    read to where the topic then ended.
    """

    topic: str
    reader: str
    start: str = "earliest"
    isolation: str = "read_committed"
    compacted: bool = False
    whole: bool = False


class Split(_Operation, frozen=True):
    """Split a segment."""

    topic: str
    segment: int


class Merge(_Operation, frozen=True):
    """Merge two segments."""

    topic: str
    segment: int
    other: int


class Trim(_Operation, frozen=True):
    """Drop what retention does not keep."""

    topic: str


class CreateTopic(_Operation, frozen=True):
    """Make a topic, perhaps again."""

    topic: str


class DeleteTopic(_Operation, frozen=True):
    """Delete a topic with everything in it; one that is made again has nothing to do with it."""

    topic: str


class Compact(_Operation, frozen=True):
    """Keep the last message of each key, in the order of ``position`` or of ``commit``, for compacted readers."""

    topic: str
    order: str = "position"


# -- the drain: after all faults, when everything was swept and no other client runs -------------------


class DrainTopic(_Operation, frozen=True):
    """Read a topic from its beginning to its end, with a fresh reader of what is committed; ``Drained``."""

    topic: str


class DrainSubscription(_Operation, frozen=True):
    """
    Receive all that a subscription still delivers, with a fresh consumer of ``type`` that acknowledges nothing.

    ``Drained`` are its messages; unknown: it did not come to an end.
    """

    topic: str
    subscription: str
    type: str = "shared"


class DrainCompacted(_Operation, frozen=True):
    """Read a topic as it was compacted, and what came since, with a fresh reader; ``Drained``."""

    topic: str


class DrainConsumer(_Operation, frozen=True):
    """
    Receive with the only consumer until no message has arrived for a long time; ``Drained``.

    A failure is a valid reply: it informs the consumer that it receives no more messages.
    """

    subscription: str
    consumer: str


class DrainOutcome(_Operation, frozen=True):
    """Ask what became of a transaction, in the end; ``Outcome`` says it, a failure that it is not known any more."""

    txn: str


Operation = (
    Begin
    | Join
    | Send
    | Commit
    | Abort
    | AskOutcome
    | Subscribe
    | Unsubscribe
    | Consume
    | Receive
    | Acknowledge
    | Redeliver
    | AskAck
    | Leave
    | Seek
    | Read
    | Split
    | Merge
    | Trim
    | CreateTopic
    | DeleteTopic
    | Compact
    | DrainTopic
    | DrainSubscription
    | DrainCompacted
    | DrainConsumer
    | DrainOutcome
)
