"""Transactions of one call: their callers do not know the ids, which readers of their messages do."""

from __future__ import annotations

import msgspec
import pytest
from stories import OTHER, TOPIC, Story, T, U

from txnframework_simulation.checkers.unnamed_transactions import with_ids
from txnframework_simulation.history import UNNAMED, Begun, Commit, Read, Received, Send

N = f"{UNNAMED}c.1"


def at_once(answer: str = "ok", read_in: str | None = T) -> Story:
    """A message, and a call that acknowledged it and sent two others, which are in ``read_in`` for readers."""
    story = Story().subscribe().send("order", 0).consume(type="shared").receive("order")
    story.begin(N).send("a", 1, N, answer=answer).send("b", 0, N, topic=OTHER, answer=answer)
    story.ack("order", txn=N, answer=answer).commit(N, answer)
    for value in ("a", "b"):
        story.stands[value] = msgspec.structs.replace(story.stands[value], txn=read_in)
    return story


def drained(story: Story, *values: str, others: tuple[str, ...] = (), left: tuple[str, ...] = ()) -> Story:
    return story.drain("order", *values).drain(*others, topic=OTHER).left(*left)


ACCEPTED = {
    "all of it": drained(at_once(), "a", others=("b",), left=("a",)),
    "refused": drained(at_once("fail"), left=("order",)),
    "unknown, and all of it": drained(at_once("unknown"), "a", others=("b",), left=("a",)),
    "unknown, and nothing": drained(at_once("unknown"), left=("order",)),
    "not read by anybody": at_once(),
}
REJECTED = {
    "one message is missing": ("torn transaction", drained(at_once(), "a", left=("a",))),
    "the acknowledgment had no effect": ("ack lost", drained(at_once(), "a", others=("b",), left=("order", "a"))),
    "refused, and read": ("aborted read", drained(at_once("fail"), "a", others=("b",), left=("a",))),
    "read outside of transactions": (
        "inconsistent positions",
        drained(at_once(read_in=None), "a", others=("b",), left=("a",)),
    ),
}


@pytest.mark.parametrize("story", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted(story: Story) -> None:
    """Everything of a call takes effect, or nothing."""
    assert story.broken() == set()


@pytest.mark.parametrize(("rule", "story"), REJECTED.values(), ids=REJECTED)
def test_rejected(rule: str, story: Story) -> None:
    """The rules hold for these transactions as for those whose ids are known."""
    assert rule in story.broken()


def test_a_committed_message_names_the_transaction() -> None:
    """A call may abort a first attempt, which only readers of uncommitted messages see; the second one counts."""
    story = at_once()
    uncommitted = msgspec.structs.replace(story.seen("a"), txn=U, committed=False)
    story.do(Read(TOPIC, "dirty", isolation="read_uncommitted"), Received((uncommitted,))).read("a")
    calls = with_ids(story.history.calls())
    assert {one.operation.txn for one in calls if isinstance(one.operation, Send | Commit)} == {None, T}
    assert [one.reply.txn for one in calls if isinstance(one.reply, Begun)] == [T]
