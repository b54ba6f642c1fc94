"""Checkers of what is delivered and acknowledged: histories that they accept, and histories that they reject."""

from __future__ import annotations

import pytest
from stories import HIGH, LOW, TOPIC, Story, T, U, place

from txnframework_simulation.history import AckedMessage, Acknowledge, Commit, DrainSubscription, Unsubscribe


def two() -> Story:
    """Two messages, received by one consumer."""
    return Story().consume().send("a", 0).send("b", 1).receive("a", "b")


def held() -> Story:
    """The first of two messages is acknowledged in an open transaction."""
    return two().begin(T).ack("a", txn=T)


def made_while_given_up() -> Story:
    """A consumer joins during the deletion by another client, and acknowledges messages of the new subscription."""
    story = Story().send("a", 0).send("b", 1).subscribe()
    giving_up = story.invoke(Unsubscribe(TOPIC, "s"), "other")
    story.consume().receive("a", incarnation=2).ack("a", incarnation=2)
    giving_up.ok()
    return story.subscribe().drain("a", "b").left("b", incarnation=2)


ACCEPTED = {
    "made while it was given up": made_while_given_up(),
    "nothing acknowledged": two().drain("a", "b").left("a", "b"),
    "delivered again": two()
    .receive("a", "b")
    .consume("l")
    .receive("a", "b", consumer="l")
    .drain("a", "b")
    .left("a", "b"),
    "acknowledged": two().ack("a").drain("a", "b").left("b"),
    "acknowledged, unknown, done": two().ack("a", answer="unknown").drain("a", "b").left("b"),
    "acknowledged, unknown, not done": two().ack("a", answer="unknown").drain("a", "b").left("a", "b"),
    "acknowledgment refused": two().ack("a", answer="fail").drain("a", "b").left("a", "b"),
    "cumulatively": two().ack("b", cumulative=True).drain("a", "b").left(),
    "committed": held().commit(T).drain("a", "b").left("b"),
    "aborted": held().abort(T).receive("a").drain("a", "b").left("a", "b"),
    "aborted, then acknowledged": held().abort(T).receive("a").ack("a").drain("a", "b").left("b"),
    "unknown, done": held().commit(T, "unknown").drain("a", "b").left("b"),
    "unknown, not done": held().commit(T, "unknown").drain("a", "b").left("a", "b"),
    "timed out": held().outcome(T, "ABORTED", finally_=True).drain("a", "b").left("a", "b"),
    "dropped because a transaction held it": held().ack("a").abort(T).drain("a", "b").left("a", "b"),
    "dropped by a cumulative one": (
        two().begin(T).ack("b", txn=T, cumulative=True).ack("a").abort(T).drain("a", "b").left("a", "b")
    ),
    "a branch that counts": two().begin(T).ack("a", txn=T, branch=7).commit(T, branches=(7,)).drain("a", "b").left("b"),
    "a branch that does not": two().begin(T).ack("a", txn=T, branch=7).commit(T).drain("a", "b").left("a", "b"),
    "forward only": (
        two()
        .begin(T)
        .ack("a", txn=T, cumulative=True)
        .commit(T)
        .begin(U)
        .ack("b", txn=U, cumulative=True)
        .commit(U)
        .drain("a", "b")
        .left()
    ),
    "cumulatively over what was committed": (
        two()
        .begin(T)
        .ack("a", txn=T)
        .commit(T)
        .begin(U)
        .ack("b", txn=U, cumulative=True)
        .commit(U)
        .drain("a", "b")
        .left()
    ),
    "one of two was refused": (
        two().begin(T, U).ack("a", txn=T).ack("a", txn=U, answer="fail").commit(T).abort(U).drain("a", "b").left("b")
    ),
    "repeated": held().ack("a", txn=T).commit(T).ack("a", txn=T).drain("a", "b").left("b"),
    "sought": two().ack("a").seek().receive("a", incarnation=2).drain("a", "b").left("a", "b", incarnation=2),
    "sought to the latest": two().seek("latest").send("d", 2).drain("a", "b", "d").left("d", incarnation=2),
    "sought to a message": two().ack("b").seek(value="b").drain("a", "b").left("b", incarnation=2),
    "sought, unknown": two().ack("a").seek(answer="unknown").drain("a", "b").left("b"),
    "a transaction from before": held().seek().commit(T).drain("a", "b").left("a", "b", incarnation=2),
    "from the latest": Story().send("a", 0).subscribe("latest").send("b", 1).drain("a", "b").left("b"),
    "sought, given up and made again at the latest": (
        two().seek().unsubscribe().subscribe("latest").send("d", 2).drain("a", "b", "d").left("d", incarnation=3)
    ),
    "given up and made again": (two().ack("a").unsubscribe().subscribe().drain("a", "b").left("a", "b", incarnation=2)),
    "shared, in any order": Story().consume(type="shared").send("a", 0).send("b", 1).receive("b").receive("a"),
    "by key, in the order of keys": (
        Story()
        .consume(type="key_shared")
        .send("a", 0, key="k")
        .send("b", 1, key="l")
        .send("d", 2, key="k")
        .receive("b", "a", "d")
    ),
    "first again, then on": two().receive("a").send("d", 2).receive("d", "b").drain("a", "b", "d").left("a", "b", "d"),
    "told states": (
        held()
        .ask_ack("a", "PENDING_ACK", T)
        .ask_ack("b", "PENDING")
        .commit(T)
        .ask_ack("a", "DELETED")
        .drain("a", "b")
        .left("b")
    ),
    "handed out late by another process": (
        two().consume("l").receive("a", consumer="l").ack("a", consumer="l").receive("a", consumer="k")
    ),
    "cumulatively on a child": (
        Story()
        .consume()
        .send("a", 0)
        .send("b", 0, segment=LOW)
        .receive("a", "b")
        .ack("b", cumulative=True)
        .drain("a", "b")
        .left()
    ),
}

REJECTED = {
    "acknowledged and left": ("ack lost", two().ack("a").drain("a", "b").left("a", "b")),
    "acknowledged cumulatively and left": ("ack lost", two().ack("b", cumulative=True).drain("a", "b").left("a")),
    "committed and left": ("ack lost", held().commit(T).drain("a", "b").left("a", "b")),
    "acknowledged and delivered to who did": ("ack lost", two().ack("a").receive("a")),
    "acknowledged and delivered to a later one": ("ack lost", two().ack("a").consume("l").receive("a", consumer="l")),
    "told to be pending": ("ack lost", two().ack("a").ask_ack("a", "PENDING")),
    "begun anew": ("ack lost", two().ack("a").drain("a", "b").left("a", "b", incarnation=2)),
    "aborted and gone": ("ack leaked", held().abort(T).drain("a", "b").left("b")),
    "refused and gone": ("ack leaked", two().ack("a", answer="fail").drain("a", "b").left("b")),
    "cumulatively aborted and gone": (
        "ack leaked",
        two().begin(T).ack("b", txn=T, cumulative=True).abort(T).drain("a", "b").left("b"),
    ),
    "timed out and gone": ("ack leaked", held().outcome(T, "ABORTED", finally_=True).drain("a", "b").left("b")),
    "a lost branch and gone": (
        "ack leaked",
        two().begin(T).ack("a", txn=T, branch=7).commit(T).drain("a", "b").left("b"),
    ),
    "never delivered": ("stuck reader", Story().subscribe().send("a", 0).send("b", 1).drain("a", "b").left("a")),
    "never delivered on a child": (
        "stuck reader",
        Story().subscribe("latest").send("a", 0).send("b", 0, segment=HIGH).drain("a", "b").left("a"),
    ),
    "sought and gone": ("stuck reader", two().ack("a").seek().drain("a", "b").left("b", incarnation=2)),
    "a drain that did not end": ("stuck reader", two().do(DrainSubscription(TOPIC, "s"), None, "unknown")),
    "by two": (
        "double ack",
        two().begin(T, U).ack("a", txn=T).ack("a", txn=U).commit(T).commit(U).drain("a", "b").left("b"),
    ),
    "what was done": ("double ack", two().ack("a").begin(T).ack("a", txn=T).commit(T).drain("a", "b").left("b")),
    "what was done cumulatively": (
        "double ack",
        two().begin(T, U).ack("b", txn=T, cumulative=True).commit(T).ack("a", txn=U).commit(U).drain("a", "b").left(),
    ),
    "back": (
        "double ack",
        two()
        .begin(T, U)
        .ack("b", txn=T, cumulative=True)
        .commit(T)
        .ack("a", txn=U, cumulative=True)
        .commit(U)
        .drain("a", "b")
        .left(),
    ),
    "done too early": ("early ack", held().ask_ack("a", "DELETED").commit(T)),
    "done without a commit": ("early ack", held().ask_ack("a", "DELETED").abort(T)),
    "done by nobody": ("early ack", two().ask_ack("a", "DELETED")),
    "acknowledged after the end": ("zombie operation", two().begin(T).abort(T).ack("a", txn=T)),
    "another one after the end": ("zombie operation", held().commit(T).ack("b", txn=T)),
    "out of order": ("order violation", Story().consume().send("a", 0).send("b", 1).receive("b").receive("a")),
    "out of order to two": (
        "order violation",
        Story()
        .consume(type="failover")
        .consume("l", type="failover")
        .send("a", 0)
        .send("b", 1)
        .receive("b")
        .receive("a", consumer="l"),
    ),
    "a key out of order": (
        "order violation",
        Story().consume(type="key_shared").send("a", 0, key="k").send("b", 1, key="k").receive("b", "a"),
    ),
    "a key out of order over a split": (
        "order violation",
        Story().consume().send("a", 9, key="k").send("b", 0, segment=LOW, key="k").receive("b", "a"),
    ),
}


@pytest.mark.parametrize("story", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted(story: Story) -> None:
    """A history that is legal breaks no rule."""
    assert story.broken() == set()


@pytest.mark.parametrize(("rule", "story"), REJECTED.values(), ids=REJECTED)
def test_rejected(rule: str, story: Story) -> None:
    """A history that is not breaks the rule that it is about."""
    assert rule in story.broken()


def test_an_acknowledgment_that_spans_segments() -> None:
    """One that failed on one segment may have been done on another: nothing is concluded from it."""
    story = Story().consume(type="shared").send("a", 0, segment=LOW).send("b", 0, segment=HIGH).receive("a", "b")
    acked = (AckedMessage(place(0, LOW), 1), AckedMessage(place(0, HIGH), 1))
    story.do(Acknowledge("s", "k", acked), None, "fail").drain("a", "b")
    assert story.left("a").broken() == set()


def test_a_commit_under_way() -> None:
    """A message may be finished as soon as the commit of its transaction was requested."""
    story = held()
    commit = story.invoke(Commit(T))
    story.ask_ack("a", "DELETED")
    commit.ok()
    assert story.broken() == set()
