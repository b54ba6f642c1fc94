"""Operations of clients: topics have full names; values, keys and transaction ids are text."""

from __future__ import annotations

import msgspec

from txnframework_simulation.history.replies import AckedMessage, MessagePosition, SeenMessage


class _Operation(msgspec.Struct, frozen=True, tag=True, tag_field="do", gc=False):
    """Base class of operations; the name of the class is stored."""


class Begin(_Operation, frozen=True):
    """Begin a transaction; the reply is ``Begun``."""


class Join(_Operation, frozen=True):
    """Join a transaction with a new branch; the reply is ``Joined``."""

    txn: str


class Send(_Operation, frozen=True):
    """
    Send one message; the reply is ``Sent``. A call that sends several messages is recorded as several operations.

    ``value`` is unique within a run. It is sent again only to repeat the send, with the same ``producer`` and
    ``sequence``. ``sequence`` None: the producer numbers its messages, and the send is never repeated.
    """

    topic: str
    value: str
    key: str | None = None
    txn: str | None = None
    branch: int = 0
    producer: str = ""
    sequence: int | None = None


class Commit(_Operation, frozen=True):
    """
    Commit; the listed branches count, and branch 0 always counts.

    ``by_id``: a commit that does not wait for the operations of the transaction's owner.
    """

    txn: str
    branches: tuple[int, ...] = ()
    by_id: bool = False


class Abort(_Operation, frozen=True):
    """Abort."""

    txn: str


class AskOutcome(_Operation, frozen=True):
    """Ask for the outcome of a transaction; the reply is ``Outcome``."""

    txn: str


class Subscribe(_Operation, frozen=True):
    """Create a subscription if it does not exist; ``start``: ``earliest`` or ``latest``."""

    topic: str
    subscription: str
    start: str


class Unsubscribe(_Operation, frozen=True):
    """Delete a subscription."""

    topic: str
    subscription: str


class Consume(_Operation, frozen=True):
    """
    Join a subscription, and create it if it does not exist.

    ``consumer`` is unique within a run; each joining has a new name. ``segment``: only this segment and its
    descendants. ``dead_letters``: the topic for messages that were redelivered more than ``redeliveries_max`` times.
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
    """
    Receive messages; the reply is ``Received``.

    ``txn``: the transaction that they are received for, if it is known.
    """

    subscription: str
    consumer: str
    txn: str | None = None


class Handle(_Operation, frozen=True):
    """
    Call a handler for a message that a loop has received; a failure: the handler raised an error.

    The loop calls it again for the same delivery after a temporary error. ``txn``: the transaction of this call.
    """

    subscription: str
    consumer: str
    seen: SeenMessage
    txn: str


class Acknowledge(_Operation, frozen=True):
    """
    Acknowledge; ``cumulative``: one message, and all messages before it in its segment and in the segment's ancestors.
    """

    subscription: str
    consumer: str
    messages: tuple[AckedMessage, ...]
    cumulative: bool = False
    txn: str | None = None
    branch: int = 0


class Redeliver(_Operation, frozen=True):
    """
    Ask for the redelivery of all messages that a consumer received and did not acknowledge.

    They are unprocessed.
    """

    subscription: str
    consumer: str


class AskAck(_Operation, frozen=True):
    """Ask whether a message is acknowledged on a subscription; the reply is ``AckFound``."""

    subscription: str
    place: MessagePosition


class Leave(_Operation, frozen=True):
    """Close a consumer."""

    subscription: str
    consumer: str


class Seek(_Operation, frozen=True):
    """
    Move a subscription: ``to`` is ``earliest``, ``latest``, ``time``, or ``message``: then ``place`` is delivered next.
    """

    topic: str
    subscription: str
    to: str
    place: MessagePosition | None = None


class Read(_Operation, frozen=True):
    """
    Read the next messages of a reader; the reply is ``Received``.

    ``reader`` is unique within a run. All its reads have the same ``start`` (``earliest``, ``latest`` or ``message``)
    and ``isolation``. ``compacted``: messages may be left out. ``whole``: the reader was opened for this call, and read
    up to the current end of the topic.
    """

    topic: str
    reader: str
    start: str = "earliest"
    isolation: str = "read_committed"
    compacted: bool = False
    whole: bool = False


class ReadSnapshot(_Operation, frozen=True):
    """Take a snapshot of topics, and read all of them in it; the reply is ``Received``."""

    topics: tuple[str, ...]


class Split(_Operation, frozen=True):
    """Split a segment."""

    topic: str
    segment: int


class Migrate(_Operation, frozen=True):
    """Migrate a topic to another family, or withdraw its migration (``forward`` False)."""

    topic: str
    forward: bool = True


class Merge(_Operation, frozen=True):
    """Merge two segments."""

    topic: str
    segment: int
    other: int


class Trim(_Operation, frozen=True):
    """Remove the messages that retention does not keep."""

    topic: str


class CreateTopic(_Operation, frozen=True):
    """Create a topic; an earlier topic of this name may have been deleted."""

    topic: str


class DeleteTopic(_Operation, frozen=True):
    """Delete a topic with all its data; a later topic of the same name is unrelated."""

    topic: str


class Compact(_Operation, frozen=True):
    """Keep the last message of each key, in the order of ``position`` or of ``commit``, for compacted readers."""

    topic: str
    order: str = "position"


# -- the drain: after all faults and sweeps, while no other client runs --------------------------------


class DrainTopic(_Operation, frozen=True):
    """Read a topic from beginning to end with a new read-committed reader; the reply is ``Drained``."""

    topic: str


class DrainSubscription(_Operation, frozen=True):
    """
    Receive all messages that a subscription still delivers, with a new consumer of ``type`` that acknowledges nothing.

    The reply is ``Drained``. The outcome is unknown if the deliveries did not end.
    """

    topic: str
    subscription: str
    type: str = "shared"


class DrainCompacted(_Operation, frozen=True):
    """Read a topic's compacted messages, and all later ones, with a new reader; the reply is ``Drained``."""

    topic: str


class DrainRows(_Operation, frozen=True):
    """Read the committed rows of a table of the application, at the end; the reply is ``RowsFound``."""

    table: str


class DrainConsumer(_Operation, frozen=True):
    """
    Receive with the only consumer until no message has arrived for a long time; the reply is ``Drained``.

    A failure is a valid reply: it informs the consumer that it receives no more messages.
    """

    subscription: str
    consumer: str


class DrainOutcome(_Operation, frozen=True):
    """
    Ask for the outcome of a transaction in the final drain; the reply is ``Outcome``.

    A failure: it is no longer known.
    """

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
    | Handle
    | Acknowledge
    | Redeliver
    | AskAck
    | Leave
    | Seek
    | Read
    | ReadSnapshot
    | Split
    | Merge
    | Trim
    | CreateTopic
    | Migrate
    | DeleteTopic
    | Compact
    | DrainTopic
    | DrainSubscription
    | DrainCompacted
    | DrainConsumer
    | DrainRows
    | DrainOutcome
)
