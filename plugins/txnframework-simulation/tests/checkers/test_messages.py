"""Checkers of what is written and read: histories that they accept, and histories that they reject."""

from __future__ import annotations

import pytest
from stories import HIGH, LOW, OTHER, TOPIC, Story, T, U, place

from txnframework.model.positions import ASIDE
from txnframework_simulation.checkers import check
from txnframework_simulation.history import (
    Commit,
    Drained,
    DrainTopic,
    MessagePosition,
    Read,
    Received,
    SeenMessage,
    Send,
    Sent,
)


def two_written() -> Story:
    return Story().send("a").begin(T).send("b", txn=T)


def told_aside() -> Story:
    """A message in a transaction that gets its place with the commit, and one outside that is sent after it."""
    aside = MessagePosition(place(0).segment, ASIDE, 0, 0)
    return Story().begin(T).do(Send(TOPIC, "b", None, T, 0, "p", None), Sent(aside)).send("a", 0).show("b", 1, T)


def transferred() -> Story:
    """A transaction that wrote to two topics, in one of them before what stands outside."""
    return Story().begin(T).send("a", 0, T).send("b", 0, T, topic=OTHER).send("c", 1, topic=OTHER)


ACCEPTED = {
    "nothing": Story(),
    "plain": Story().send("a").send("b").read("a", "b").drain("a", "b"),
    "committed": two_written().commit(T).read("a", "b").drain("a", "b"),
    "aborted": two_written().abort(T).read("a").drain("a"),
    "open": two_written().read("a"),
    "a reader behind": two_written().read("a").commit(T).read("b").drain("a", "b"),
    "acknowledged after the subscription was drained": (
        Story()
        .subscribe()
        .send("a", 0)
        .left("a")
        .begin(T)
        .receive("a")
        .send("b", 1, T)
        .ack("a", txn=T)
        .commit(T)
        .drain("a", "b")
        .left("b")
    ),
    "a snapshot with all of it": transferred().commit(T).snapshot("a", "b", "c"),
    "a snapshot that hides what is held back in the other topic": (
        Story()
        .begin(T, U)
        .send("x", 0, U, topic=OTHER)
        .send("a", 0, T)
        .send("b", 1, T, topic=OTHER)
        .commit(T)
        .read("a")
        .snapshot()
    ),
    "a snapshot of what ends meanwhile": transferred().snapshot("c").commit(T, "unknown"),
    "an unknown send, there": Story().send("a", answer="unknown").drain("a"),
    "an unknown send, not there": Story().send("a", answer="unknown").drain(),
    "an unknown commit that happened": two_written().commit(T, "unknown").read("a", "b").drain("a", "b"),
    "an unknown commit that did not": two_written().commit(T, "unknown").read("a").drain("a"),
    "an unknown commit, asked about": two_written().commit(T, "unknown").outcome(T, "ABORTED").drain("a"),
    "a commit that came too late": two_written().commit(T, "fail", told="ABORTED").drain("a"),
    "a refused send": Story().send("a", answer="fail").send("b").drain("b"),
    "sent again, confirmed": Story().send("a", 0, answer="unknown").send("a", 0).drain("a"),
    "sent again after an abort": (
        Story().begin(T).send("a", 0, T).abort(T).begin(U).send("a", 1, U).commit(U).read("a").drain("a")
    ),
    "sent again, confirmed by a committed copy": (
        Story().begin(T).send("a", 0, T).commit(T).begin(U).send("a", 0, U).commit(U).show("a", 0, T).drain("a")
    ),
    "two topics": (
        Story().begin(T).send("a", 0, T).send("b", 0, T, topic=OTHER).commit(T).drain("a").drain("b", topic=OTHER)
    ),
    "a branch that counts": two_written().send("d", txn=T, branch=7).commit(T, branches=(7,)).drain("a", "b", "d"),
    "a branch that does not": two_written().send("d", txn=T, branch=7).commit(T).drain("a", "b"),
    "late under a branch that does not count": two_written().commit(T).send("d", txn=T, branch=7).drain("a", "b"),
    "a place with the commit": told_aside().commit(T).read("a", "b").drain("a", "b"),
    "a place with the commit, and trimmed": told_aside().commit(T).drain(trimmed=(place(2),)),
    "trimmed": Story().send("a", 0).send("b", 1).drain("b", trimmed=(place(1),)),
    "trimmed and acknowledged": (
        Story().subscribe().send("a", 0).send("b", 1).receive("a").ack("a").drain("b", trimmed=(place(1),)).left("b")
    ),
    "uncommitted, and said so": two_written().do(
        Read(TOPIC, "u", isolation="read_uncommitted"),
        Received((SeenMessage(place(0), "a"), SeenMessage(place(1), "b", None, T, committed=False))),
    ),
    "order of keys over a split": (
        Story().send("a", 5, key="k").send("b", 0, segment=LOW, key="k").send("d", 0, segment=HIGH).drain("a", "b", "d")
    ),
    "concurrent": Story().send("a", 1, answer="unknown").send("b", 0).drain("b", "a"),
    "gone before a reader": (
        Story().send("a", 0).send("b", 1).read("a").read("b", reader="q").drain("b", trimmed=(place(1),))
    ),
    "a reader from the latest": Story().send("a").read("a").send("b").read("b", reader="q", start="latest"),
    "a flow": (
        Story()
        .begin(T)
        .send("a", 0, T)
        .commit(T)
        .subscribe()
        .begin(U)
        .receive("a")
        .ack("a", txn=U)
        .send("b", 1, U)
        .commit(U)
        .drain("a", "b")
        .left("b")
    ),
    "refused, and so aborted": (
        Story().begin(T).send("a", txn=T).send("b", txn=T, answer="fail").commit(T, "fail", told="ABORTED").drain()
    ),
    "a branch in which a send failed": (
        two_written().send("d", txn=T, branch=7, answer="fail").commit(T).drain("a", "b")
    ),
    "half of a transaction, the rest not reached": (
        transferred().commit(T).read("a").read(topic=OTHER, reader="q").drain("a").drain("b", "c", topic=OTHER)
    ),
    "all of it, whoever reads": (
        transferred().commit(T).read("a", whole=True).read("b", "c", topic=OTHER, reader="q", whole=True)
    ),
    "held back by one that is open": (
        Story().begin(T, U).send("x", 0, U).send("b", 1, T).send("c", 2).commit(T).read(whole=True)
    ),
    "held back by one that may be open": (
        Story()
        .begin(T, U)
        .send("x", 0, U, answer="unknown")
        .send("b", 1, T)
        .commit(T)
        .abort(U, "unknown")
        .read(whole=True)
        .drain("b")
    ),
    "opened before it was committed": two_written().read("a", whole=True).commit(T).drain("a", "b"),
    "decided, and not carried out yet": (
        two_written().commit(T, "unknown").outcome(T, "COMMITTING").read("a", whole=True).drain("a", "b")
    ),
    "asked for while it ended": two_written().outcome(T, "OPEN").commit(T).outcome(T, "COMMITTED").drain("a", "b"),
}

REJECTED = {
    "a place with the commit, and lost": ("lost write", told_aside().commit(T).drain("a")),
    "one place, two messages": ("inconsistent positions", Story().send("a", 0).send("b", 0).drain("a")),
    "seen elsewhere than told": ("inconsistent positions", Story().send("a", 0).show("a", 3).read("a")),
    "in another transaction": ("inconsistent positions", Story().begin(T, U).send("a", 0, T).show("a", 0, U).read("a")),
    "told two places": ("inconsistent positions", Story().send("a", 0, sequence=1).send("a", 1, sequence=1)),
    "twice": (
        "duplicate",
        Story().send("a", 0, answer="unknown").show("a", 0).read("a").show("a", 1).read("a", reader="q"),
    ),
    "twice in one reader": ("duplicate", Story().send("a").read("a").read("a")),
    "twice in the drain": ("duplicate", Story().send("a").drain("a", "a")),
    "twice for a subscription": ("duplicate", Story().subscribe().send("a").drain("a").left("a", "a")),
    "aborted": ("aborted read", two_written().abort(T).read("a", "b")),
    "aborted later": ("aborted read", two_written().read("a", "b").abort(T)),
    "timed out": ("aborted read", two_written().read("a", "b").outcome(T, "ABORTED", finally_=True)),
    "not committed yet": ("aborted read", two_written().read("a", "b").commit(T).drain("a", "b")),
    "from nowhere": ("aborted read", Story().send("a").show("x", 7).drain("a", "x")),
    "from no transaction": ("aborted read", Story().send("a").show("x", 7, U).drain("a", "x")),
    "refused": ("aborted read", Story().send("a", answer="fail").drain("a")),
    "delivered while open": ("aborted read", two_written().subscribe().receive("a", "b").commit(T).drain("a", "b")),
    "lost": ("lost write", Story().send("a").send("b").drain("b")),
    "lost with its transaction": ("lost write", two_written().commit(T).drain("a")),
    "lost by outcome": ("lost write", two_written().commit(T, "unknown").outcome(T, "COMMITTED").drain("a")),
    "lost by trimming": (
        "lost write",
        Story().subscribe().send("a", 0).send("b", 1).drain("b", trimmed=(place(1),)).left("b"),
    ),
    "a lost branch": ("lost write", two_written().send("d", txn=T, branch=7).commit(T, branches=(7,)).drain("a", "b")),
    "torn": ("torn transaction", Story().begin(T).send("a", 0, T).send("b", 1, T).commit(T).drain("a")),
    "torn between topics": (
        "torn transaction",
        Story()
        .begin(T)
        .send("a", 0, T)
        .send("b", 0, T, topic=OTHER)
        .commit(T, "unknown")
        .drain("a")
        .drain(topic=OTHER),
    ),
    "torn for one reader": (
        "torn transaction",
        Story().begin(T).send("a", 0, T).send("b", 1, T).commit(T).read("b").drain("a", "b"),
    ),
    "torn from its acknowledgments": (
        "torn transaction",
        Story()
        .subscribe()
        .send("a", 0)
        .begin(T)
        .receive("a")
        .ack("a", txn=T)
        .send("b", 1, T)
        .commit(T, "unknown")
        .drain("a", "b")
        .left("a", "b"),
    ),
    "acknowledged without its output": (
        "torn transaction",
        Story()
        .subscribe()
        .send("a", 0)
        .begin(T)
        .receive("a")
        .ack("a", txn=T)
        .send("b", 1, T)
        .commit(T, "unknown")
        .drain("a")
        .left(),
    ),
    "a circle": (
        "circular information flow",
        Story()
        .subscribe()
        .begin(T, U)
        .send("a", 0, T)
        .send("b", 1, U)
        .receive("b", txn=T)
        .receive("a", txn=U)
        .commit(T)
        .commit(U),
    ),
    "sent after the end": ("zombie operation", two_written().commit(T).send("d", txn=T).drain("a", "b", "d")),
    "sent under a lost branch": (
        "zombie operation",
        two_written().send("d", txn=T, branch=7).commit(T, branches=(8,)).drain("a", "b", "d"),
    ),
    "committed after a refusal": (
        "hasty commit",
        two_written().send("d", txn=T, answer="fail").commit(T).drain("a", "b"),
    ),
    "committed in doubt": ("hasty commit", two_written().send("d", txn=T, answer="unknown").commit(T).drain("a", "b")),
    "committed under way": ("hasty commit", two_written().begin_send("d", T).commit(T).drain("a", "b")),
    "committed and aborted": ("outcome flip", two_written().commit(T).outcome(T, "ABORTED")),
    "aborted and committed": ("outcome flip", two_written().abort(T).commit(T)),
    "open again": ("outcome flip", two_written().commit(T).outcome(T, "OPEN")),
    "a refusal that told otherwise": ("outcome flip", two_written().commit(T).commit(T, "fail", told="ABORTED")),
    "committed by nobody": ("outcome flip", two_written().outcome(T, "COMMITTED").commit(T)),
    "open in the end": ("stuck reader", two_written().outcome(T, "OPEN", finally_=True)),
    "a drain without end": ("stuck reader", Story().send("a").do(DrainTopic(TOPIC), None, "unknown")),
    "stored before what was confirmed": ("order violation", Story().send("a", 5).send("b", 3).drain("b", "a")),
    "one key, over a split": (
        "order violation",
        Story().send("a", 5, segment=LOW, key="k").send("b", 7, key="k").drain("b", "a"),
    ),
    "a reader that goes back": ("order violation", Story().send("a", 0).send("b", 1).read("b", "a")),
    "a child before its parent": (
        "order violation",
        Story().send("a", 5).send("b", 0, segment=LOW).read("b", "a"),
    ),
    "passed over": (
        "non-monotonic read",
        Story().send("a", 0, answer="unknown").send("b", 1).read("a").read("b", reader="q"),
    ),
    "half of a transaction": (
        "torn transaction",
        transferred().commit(T).read("a").read("c", topic=OTHER, reader="q").drain("a").drain("b", "c", topic=OTHER),
    ),
    "half of one of which nobody knows": (
        "torn transaction",
        transferred().read("c", topic=OTHER, reader="q").commit(T, "unknown").read("a"),
    ),
    "came further, whenever it was committed": (
        "missed read",
        Story().begin(T).send("a", 0, T).send("b", 1).read("b").commit(T).drain("a", "b"),
    ),
    "ended before it, and nothing held it back": ("missed read", two_written().commit(T).read("a", whole=True)),
    "held back by what had ended": (
        "missed read",
        Story().begin(T, U).send("x", 0, U).send("b", 1, T).abort(U).commit(T).read(whole=True),
    ),
    "held back by what came later": (
        "missed read",
        Story().begin(T, U).send("b", 1, T).send("x", 2, U).commit(T).read(whole=True),
    ),
    "half of it in a snapshot": ("fractured snapshot", transferred().commit(T).snapshot("a", "c")),
    "a part of one topic in a snapshot": (
        "fractured snapshot",
        Story().begin(T).send("a", 0, T).send("b", 1, T).commit(T, "unknown").snapshot("b"),
    ),
    "not in a snapshot, although nothing held it back": ("fractured snapshot", transferred().commit(T).snapshot("c")),
    "not in the drain": (
        "non-monotonic read",
        Story().send("a", 0, answer="unknown").send("b", 1).read("a", "b").drain("b"),
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


def test_reading_while_the_commit_is_under_way() -> None:
    """A commit may take effect at any time after it was asked for."""
    story = two_written()
    commit = story.invoke(Commit(T))
    story.read("a", "b")
    commit.ok()
    assert story.drain("a", "b").broken() == set()


def test_sends_that_overlap() -> None:
    """Of two sends under way at a time either may come first."""
    story = Story()
    first = story.invoke(Send(TOPIC, "a"))
    story.send("b", 0)
    first.ok(Sent(place(1)))
    assert story.show("a", 1).drain("b", "a").broken() == set()


def test_what_was_never_answered() -> None:
    """What a killed process had asked for may have happened, and a drain that it had begun did not end."""
    story = Story().send("a", 0)
    story.invoke(Send(TOPIC, "b"), "killed")
    assert story.show("b", 1).drain("a", "b").broken() == set()
    story.invoke(DrainTopic(OTHER), "killed too")
    assert "stuck reader" in story.broken()


def test_what_a_violation_says() -> None:
    """It names the rule, says what happened with the values, and shows the events in their order."""
    (broken,) = check(two_written().abort(T).read("a", "b").history)
    assert str(broken).startswith(f"aborted read: 'b' was read from {place(1)}, and its transaction {T} was aborted")
    assert [event.client for event in broken.events] == ["c"] * len(broken.events)
    assert [event.at_ns for event in broken.events] == sorted(event.at_ns for event in broken.events)
    assert any(
        event.reply == Received((SeenMessage(place(0), "a"), SeenMessage(place(1), "b", None, T)))
        for event in broken.events
    )


def test_the_last_of_several_drains() -> None:
    """Every drain is held to the rules: what was there in one is there in the next."""
    story = Story().send("a").drain("a")
    story.do(DrainTopic(TOPIC), Drained(()))
    assert "lost write" in story.broken()
