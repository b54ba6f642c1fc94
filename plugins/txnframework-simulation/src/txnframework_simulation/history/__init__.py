"""
Histories: the operations of all clients and the replies to them; ``txnframework_simulation.checkers`` judges them.

``operations`` and ``replies`` define the recorded data, and ``events`` puts it in order. ``recorder`` records it, and
``files`` stores it.

    history = History()
    recorder = Recorder(time.monotonic_ns, history.events.append)
    await recorder.call(
        "client-1", Send(topic, "a"), lambda: producer.send(b"a"), lambda sent: Sent(MessagePosition.of(sent))
    )
"""

from __future__ import annotations

from txnframework_simulation.history.events import Call, Event, EventKind, History
from txnframework_simulation.history.files import FORMAT, VERSION, HistoryWriter, read, write
from txnframework_simulation.history.operations import (
    Abort,
    Acknowledge,
    AskAck,
    AskOutcome,
    Begin,
    Commit,
    Compact,
    Consume,
    CreateTopic,
    DeleteTopic,
    DrainCompacted,
    DrainConsumer,
    DrainOutcome,
    DrainRows,
    DrainSubscription,
    DrainTopic,
    Handle,
    Join,
    Leave,
    Merge,
    Operation,
    Read,
    Receive,
    Redeliver,
    Seek,
    Send,
    Split,
    Subscribe,
    Trim,
    Unsubscribe,
)
from txnframework_simulation.history.recorder import PendingCall, Recorder, classify_error
from txnframework_simulation.history.replies import (
    NULL,
    NULL_HEADER,
    AckedMessage,
    AckFound,
    Begun,
    Changed,
    Done,
    Drained,
    Joined,
    MessagePosition,
    Outcome,
    Received,
    Reply,
    RowsFound,
    SeenMessage,
    Sent,
)

__all__ = [
    "FORMAT",
    "NULL",
    "NULL_HEADER",
    "VERSION",
    "Abort",
    "AckFound",
    "AckedMessage",
    "Acknowledge",
    "AskAck",
    "AskOutcome",
    "Begin",
    "Begun",
    "Call",
    "Changed",
    "Commit",
    "Compact",
    "Consume",
    "CreateTopic",
    "DeleteTopic",
    "Done",
    "DrainCompacted",
    "DrainConsumer",
    "DrainOutcome",
    "DrainRows",
    "DrainSubscription",
    "DrainTopic",
    "Drained",
    "Event",
    "EventKind",
    "Handle",
    "History",
    "HistoryWriter",
    "Join",
    "Joined",
    "Leave",
    "Merge",
    "MessagePosition",
    "Operation",
    "Outcome",
    "PendingCall",
    "Read",
    "Receive",
    "Received",
    "Recorder",
    "Redeliver",
    "Reply",
    "RowsFound",
    "Seek",
    "SeenMessage",
    "Send",
    "Sent",
    "Split",
    "Subscribe",
    "Trim",
    "Unsubscribe",
    "classify_error",
    "read",
    "write",
]
