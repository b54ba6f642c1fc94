"""Histories: what is recorded, and how it is kept."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

import pytest

from txnframework.errors import (
    Closed,
    Corrupt,
    InvalidTransactionState,
    OutcomeUnknown,
    TransactionConflict,
    TransactionHasFailedOperations,
    UnknownFormat,
)
from txnframework.model.ids import TxnID
from txnframework.model.transactions import State
from txnframework_simulation.history import (
    AckedMessage,
    Acknowledge,
    Begin,
    Begun,
    Commit,
    Drained,
    DrainTopic,
    Event,
    EventKind,
    History,
    HistoryWriter,
    MessagePosition,
    Outcome,
    Recorder,
    SeenMessage,
    Send,
    Sent,
    read,
    write,
)

TOPIC = "topic://public/default/orders"
PLACE = MessagePosition("segment://public/default/orders/0000-ffff-0", 0, 3)


def recording() -> tuple[History, Recorder]:
    history = History(about={"seed": "7"})
    return history, Recorder(count(1).__next__, history.events.append)


def some_history() -> History:
    history, recorder = recording()
    begun = recorder.invoke("a", Begin())
    sent = recorder.invoke("b", Send(TOPIC, "1", key="k"))
    begun.ok(Begun("0" * 32))
    sent.ok(Sent(PLACE))
    recorder.invoke("a", Acknowledge("s", "c", (AckedMessage(PLACE, 2),), txn="0" * 32))
    drained = recorder.invoke("z", DrainTopic(TOPIC))
    drained.ok(Drained((SeenMessage(PLACE, "1", "k"),)))
    return history


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    """A history that was written to a file is the same when it is read."""
    history = some_history()
    write(history, tmp_path / "one")
    appending = HistoryWriter(tmp_path / "two", history.about)
    for event in history.events:
        appending.keep(event)
    appending.close()
    assert read(tmp_path / "one") == read(tmp_path / "two") == history


def test_each_line_is_json(tmp_path: Path) -> None:
    """Other tools can read it: a line of JSON for each event, after one for the run."""
    write(some_history(), tmp_path / "one")
    lines = (tmp_path / "one").read_text().splitlines()
    assert lines[0] == '{"format":"txnframework-history","version":1,"about":{"seed":"7"}}'
    assert lines[1] == '{"at_ns":1,"client":"a","number":1,"kind":"invoke","operation":{"do":"Begin"}}'
    assert len(lines) == 1 + 7


def test_another_format_is_refused(tmp_path: Path) -> None:
    """A history of another version, of another kind, or with a damaged line is not read as something else."""
    file = tmp_path / "one"
    file.write_text('{"format":"txnframework-history","version":2}\n')
    with pytest.raises(UnknownFormat, match="version 2"):
        read(file)
    file.write_text('{"format":"other","version":1}\n')
    with pytest.raises(Corrupt, match="no history"):
        read(file)
    file.write_text("")
    with pytest.raises(Corrupt, match="line 1"):
        read(file)
    file.write_text('{"format":"txnframework-history","version":1}\n{"at_ns":1}\n')
    with pytest.raises(Corrupt, match="line 2"):
        read(file)


def test_a_line_that_was_being_written(tmp_path: Path) -> None:
    """A last line that its process could not finish is left out: the call that it ended is unknown."""
    file = tmp_path / "one"
    write(some_history(), file)
    file.write_bytes(file.read_bytes()[:-3])
    *_, last = read(file).calls()
    assert last.operation == DrainTopic(TOPIC)
    assert last.kind is EventKind.UNKNOWN


def test_calls() -> None:
    """Calls are in the order they began, and know what came before what; what was not answered may have happened."""
    begun, sent, acknowledged, drained = some_history().calls()
    assert (begun.began, begun.ended, begun.reply) == (0, 2, Begun("0" * 32))
    assert (sent.began, sent.ended, sent.ok, sent.client) == (1, 3, True, "b")
    assert (acknowledged.kind, acknowledged.ended, acknowledged.possible) == (EventKind.UNKNOWN, 7, True)
    assert drained.events[1].reply == Drained((SeenMessage(PLACE, "1", "k"),))


def test_events_that_belong_to_no_call() -> None:
    """An answer without a question, two answers and a number used twice are damage, not history."""
    history = some_history()
    invoke, answer = history.events[0], history.events[2]
    for events in ([answer], [invoke, answer, answer], [invoke, invoke], [Event(1, "a", 1, EventKind.INVOKE)]):
        with pytest.raises(Corrupt):
            History(events).calls()


def test_merging() -> None:
    """What several processes recorded by one clock is one history in its order."""
    history = some_history()
    parts = [History([one for one in history.events if one.client == name]) for name in ("z", "a", "b")]
    assert History.merged(parts, history.about) == history


@pytest.mark.parametrize(
    ("error", "kind", "reply"),
    [
        (TransactionConflict(None, "it has ended"), EventKind.FAIL, None),
        (TransactionHasFailedOperations(TxnID(1, 1)), EventKind.FAIL, Outcome("ABORTED")),
        (InvalidTransactionState(TxnID(1, 1), State.COMMITTED, "it is over"), EventKind.FAIL, Outcome("COMMITTED")),
        (OutcomeUnknown("the answer was lost"), EventKind.UNKNOWN, None),
        (Closed("it was closed"), EventKind.UNKNOWN, None),
        (asyncio.CancelledError(), EventKind.UNKNOWN, None),
        (ValueError("a defect"), EventKind.UNKNOWN, None),
    ],
)
def test_what_an_exception_tells(error: BaseException, kind: EventKind, reply: Outcome | None) -> None:
    """Only errors that promise that nothing happened are failures; some also tell the outcome of the transaction."""
    history, recorder = recording()

    async def work() -> None:
        raise error

    with pytest.raises(type(error)):
        asyncio.run(recorder.call("a", Commit("0" * 32), work))
    assert [event.kind for event in history.events] == [EventKind.INVOKE, kind]
    assert history.events[1].reply == reply


def test_recording_a_call() -> None:
    """The question is recorded before the work begins, the answer after it."""
    history, recorder = recording()

    async def work() -> MessagePosition:
        assert [event.kind for event in history.events] == [EventKind.INVOKE]
        return PLACE

    assert asyncio.run(recorder.call("a", Send(TOPIC, "1"), work, Sent)) == PLACE
    assert history.calls()[0].reply == Sent(PLACE)


def test_the_topic_of_a_place() -> None:
    """A place knows the topic of its segment; a persistent topic is its own."""
    assert PLACE.topic == TOPIC
    assert MessagePosition("persistent://public/default/p", 0, 0).topic == "persistent://public/default/p"
