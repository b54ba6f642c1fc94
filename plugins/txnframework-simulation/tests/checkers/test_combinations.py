"""Checkers of what combines: ranges and single messages, batches, dead letters, deleted topics, compaction, splits."""

from __future__ import annotations

import pytest
from stories import HIGH, LETTERS, LOW, TOPIC, Story, T, U, V

from txnframework_simulation.checkers import check
from txnframework_simulation.checkers.facts import CLOCK_SKEW_MS
from txnframework_simulation.history import (
    AckedMessage,
    Acknowledge,
    Consume,
    DeleteTopic,
    MessagePosition,
    Receive,
    Received,
    SeenMessage,
    Unsubscribe,
)

SEGMENT = f"{TOPIC.replace('topic', 'segment', 1)}/0000-ffff-0"


def batch(*consumers: str) -> Story:
    """A batch of three messages, given to each of these consumers."""
    story = Story()
    for name in consumers:
        story.consume(name, type="failover")
    for index, value in enumerate("abd"):
        story.send(value, 0)
        story.stands[value] = SeenMessage(MessagePosition(SEGMENT, 0, 0, index), value)
    story.history.events.clear()  # what was sent is given below, with its places in the batch
    for name in consumers:
        story.consume(name, type="failover")
    for name in consumers:
        story.receive("a", "b", "d", consumer=name)
    return story


def dropped_and_repeated() -> Story:
    """A transaction acknowledges, a plain one of the same message is dropped, the transaction repeats its own."""
    story = Story().consume(type="shared").send("a", 0).send("b", 1).receive("a", "b").begin(T)
    return story.ack("a", txn=T).ack("a").ack("a", txn=T).commit(T).drain("a", "b").left("b")


def given_up_in_vain(type: str = "shared", start: str = "earliest") -> Story:
    """Deleting a subscription was cancelled before it had an effect, and a consumer joins."""
    story = Story().subscribe().send("a", 0).send("b", 1).consume(type="shared").receive("a", "b").ack("a")
    story.invoke(Unsubscribe(TOPIC, "s"), "other").unknown("CancelledError: ")
    return story.consume("l", type=type, start=start)


def letters(most: int = 1) -> Story:
    """Two messages, received by a consumer that moves what comes too often."""
    return Story().consume(type="shared", letters=LETTERS, most=most).send("a", 0).send("b", 1).receive("a", "b")


def again() -> Story:
    """A topic that was deleted and made again; another message stands at the place of one from before."""
    story = Story().subscribe().consume().send("a", 0).receive("a").ack("a").delete().create().subscribe()
    return story.consume("l").send("b", 0)


def joined_meanwhile() -> Story:
    """A consumer's request to join before a deletion returns after it, and it acknowledges messages of the new
    topic.
    """
    story = Story().subscribe()
    joining = story.invoke(Consume((TOPIC,), "s", "k", "shared", "earliest"))
    story.delete().create().subscribe().send("b", 0)
    joining.ok()
    return story.receive("b").ack("b").drain("b").left()


def received_meanwhile(first: str) -> Story:
    """While a second deletion runs that only helps the first one, a consumer of the next topic receives a message."""
    story = Story().subscribe()
    helping = story.invoke(DeleteTopic(TOPIC))
    story.delete().create().subscribe().consume("l", "failover").send("a", 0).send("b", 1).send("e", 2)
    story.receive(first, consumer="l")
    helping.ok()
    return story.consume("m", "failover").receive("e", consumer="m").receive("a", consumer="m")


def keyed() -> Story:
    """Two messages of one key and one without; the one with the lowest position was committed last."""
    story = Story().begin(T, U).send("a", 0, T, key="k").send("b", 1, U, key="k").send("e", 2)
    story.history.about[CLOCK_SKEW_MS] = "0"
    return story.commit(U).commit(T)


def deleted_key() -> Story:
    """A message, and in what its segment became the null that deletes its key."""
    return Story().send("a", 0, key="k").send("e", 1).send("null d", 0, segment=LOW, key="k").compact()


def split() -> Story:
    """A consumer that names a segment, which was split since; what came of it holds a message."""
    story = Story().consume(topic=SEGMENT).send("a", 0).receive("a").ack("a")
    return story.send("b", 0, segment=LOW)


ACCEPTED = {
    "a plain acknowledgment that was dropped": dropped_and_repeated(),
    "given up in vain, and nothing comes again": given_up_in_vain().drain("a", "b").left("b"),
    "given up after all": given_up_in_vain().drain("a", "b").left("a", "b", incarnation=2),
    "given up after all, from the latest": given_up_in_vain(start="latest").drain("a", "b").left(incarnation=2),
    "a part of a batch in each of two": (
        batch("k").begin(T, U).ack("a", txn=T).ack("b", "d", txn=U).commit(T).commit(U)
    ),
    "a range over what the consumer itself has finished": (
        batch("k").begin(T, U).ack("b", txn=T).commit(T).ack("d", txn=U, cumulative=True).commit(U)
    ),
    "a range over what the consumer itself has finished, as another one did": (
        batch("k", "l").ack("b", consumer="l").ack("b").begin(U).ack("d", txn=U, cumulative=True).commit(U)
    ),
    "a range up to before what another one finished": (
        batch("k", "l").begin(T, U).ack("d", txn=T, consumer="l").commit(T).ack("b", txn=U, cumulative=True).commit(U)
    ),
    "a range over what another one finished, aborted": (
        batch("k", "l").begin(T, U).ack("b", txn=T, consumer="l").commit(T).ack("d", txn=U, cumulative=True).abort(U)
    ),
    "a range over what was finished before it came": (
        Story()
        .consume(type="failover")
        .send("a", 0)
        .send("b", 1)
        .receive("a")
        .begin(T, U)
        .ack("a", txn=T)
        .commit(T)
        .consume("l", type="failover")
        .receive("b", consumer="l")
        .ack("b", txn=U, consumer="l", cumulative=True)
        .commit(U)
    ),
    "a range over what was asked for again": (
        batch("k", "l")
        .receive_again()
        .begin(T, U)
        .ack("b", txn=T, consumer="l")
        .commit(T)
        .receive("d")
        .ack("d", txn=U, cumulative=True)
        .commit(U)
    ),
    "moved": letters().letter("a", txn=V).drain("a", "b").left("b"),
    "moved, and reported as done": letters().letter("a", txn=V).ask_ack("a", "DELETED").drain("a", "b").left("b"),
    "moved and not acknowledged yet": letters().letter("a").drain("a", "b").left("a", "b"),
    "moved anew after somebody sought": letters().letter("a", txn=V).seek().letter("a", 1, txn=U),
    "dropped, a mover held it": letters().ack("a").drain("a", "b").left("a", "b"),
    "one place of two topics": again().receive("b", consumer="l").drain("b").left("b"),
    "handed out late by who joined before": again().receive("a").drain("b").left("b"),
    "joined while it was deleted": joined_meanwhile(),
    "received while it was deleted, and again": received_meanwhile("a"),
    "a deletion that nobody knows of": (
        Story().subscribe().send("a", 0).delete("unknown").create().drain("a").left("a")
    ),
    "compacted by position": keyed().compact().drain("a", "b", "e").compacted("b", "e"),
    "compacted by commit": keyed().compact("commit").drain("a", "b", "e").compacted("a", "e"),
    "compacted by one, then the other": (keyed().compact("commit").compact().drain("a", "b", "e").compacted("b", "e")),
    "compacted, and the second refused": (
        keyed().compact("commit").compact(answer="fail").drain("a", "b", "e").compacted("a", "e")
    ),
    "deleted by a null in another segment": deleted_key().drain("a", "e", "null d").compacted("e"),
    "a null that is still there": deleted_key().drain("a", "e", "null d").compacted("a", "e", "null d"),
    "a null that was overwritten": (
        deleted_key().send("f", 1, segment=LOW, key="k").drain("a", "e", "null d", "f").compacted("a", "e", "f")
    ),
    "not compacted yet": keyed().drain("a", "b", "e").compacted("a", "b", "e"),
    "followed": split().wait_in_vain("b"),
    "told that it is over": split().wait_in_vain(answer="fail"),
    "of another segment": split()
    .send("d", 0, segment=HIGH)
    .consume("l", topic=f"{SEGMENT[:-11]}{LOW}")
    .wait_in_vain("b", consumer="l"),
}

REJECTED = {
    "a range up to what another transaction named": (
        "double ack",
        batch("k").begin(T, U).ack("d", txn=T).ack("d", txn=U, cumulative=True).commit(T).commit(U),
    ),
    "a range over what another one finished since": (
        "double ack",
        batch("k", "l").begin(T, U).ack("b", txn=T, consumer="l").commit(T).ack("d", txn=U, cumulative=True).commit(U),
    ),
    "a range over what another one finished at the same time": (
        "double ack",
        batch("k", "l").begin(T, U).ack("d", txn=U, cumulative=True).ack("b", txn=T, consumer="l").commit(T).commit(U),
    ),
    "a range over a part of what another one's range finished": (
        "double ack",
        batch("k", "l")
        .begin(T, U)
        .ack("b", txn=T, consumer="l", cumulative=True)
        .commit(T)
        .ack("d", txn=U, cumulative=True)
        .commit(U),
    ),
    "a range over what somebody else finished outside transactions": (
        "double ack",
        batch("k", "l").ack("a", consumer="l").begin(U).ack("d", txn=U, cumulative=True).commit(U),
    ),
    "a range up to what came before it was asked for again": (
        "double ack",
        batch("k", "l")
        .receive_again()
        .begin(T, U)
        .ack("b", txn=T, consumer="l")
        .commit(T)
        .ack("d", txn=U, cumulative=True)
        .commit(U),
    ),
    "given up in vain, and lost": ("stuck reader", given_up_in_vain().drain("a", "b").left()),
    "one moved, another one reported as done": ("early ack", letters().letter("a", txn=V).ask_ack("b", "DELETED")),
    "late, though another one was received while it was deleted": ("order violation", received_meanwhile("b")),
    "moved twice": ("duplicate", letters().letter("a", txn=V).letter("a", 1, txn=U)),
    "moved and still delivered": ("dead letter", letters().letter("a", txn=V).drain("a", "b").left("a", "b")),
    "moved and committed": (
        "dead letter",
        letters().begin(T).ack("a", txn=T).commit(T).letter("a", txn=V).drain("a", "b").left("b"),
    ),
    "neither moved nor left": ("stuck reader", letters().letter("b", txn=V).drain("a", "b").left()),
    "moved, and nobody had sent it": ("dead letter", letters().letter("x", txn=V)),
    "redelivered too often": (
        "dead letter",
        letters().do(
            Receive("s", "k"), Received((SeenMessage(MessagePosition(SEGMENT, 0, 0), "a", None, None, 1, 2),))
        ),
    ),
    "of a topic that was deleted": ("aborted read", again().show("a", 1).drain("b", "a")),
    "acknowledged by who joined before, and gone": (
        "stuck reader",
        again().do(Acknowledge("s", "k", (AckedMessage(MessagePosition(SEGMENT, 0, 0), 1),))).drain("b").left(),
    ),
    "a later message of the key is missing": (
        "wrong compaction",
        keyed().compact().drain("a", "b", "e").compacted("a", "e"),
    ),
    "the one that was committed last is missing": (
        "wrong compaction",
        keyed().compact("commit").drain("a", "b", "e").compacted("b", "e"),
    ),
    "kept by the order of an earlier compaction": (
        "wrong compaction",
        keyed().compact("commit").compact().drain("a", "b", "e").compacted("a", "e"),
    ),
    "without a key, and missing": ("wrong compaction", keyed().compact().drain("a", "b", "e").compacted("b")),
    "deleted, and back": ("wrong compaction", deleted_key().drain("a", "e", "null d").compacted("a", "e")),
    "twice": ("wrong compaction", keyed().compact().drain("a", "b", "e").compacted("b", "b", "e")),
    "stranded behind a split": ("stuck reader", split().wait_in_vain()),
    "stranded before it": ("stuck reader", split().send("d", 1).wait_in_vain("b")),
    "silent for who joins after": (
        "stuck reader",
        Story().subscribe().send("a", 0).drain("a").left().drain("a").left("a"),
    ),
}


@pytest.mark.parametrize("story", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted(story: Story) -> None:
    """A history that is legal breaks no rule."""
    assert check(story.history) == []


@pytest.mark.parametrize(("rule", "story"), REJECTED.values(), ids=REJECTED)
def test_rejected(rule: str, story: Story) -> None:
    """A history that is not breaks the rule that it is about."""
    assert rule in story.broken()


def test_clocks_that_differ_decide_nothing() -> None:
    """Of two commits closer than clocks may differ either may be the later one."""
    story = keyed().compact("commit").drain("a", "b", "e").compacted("b", "e")
    story.history.about[CLOCK_SKEW_MS] = "1"
    assert check(story.history) == []
