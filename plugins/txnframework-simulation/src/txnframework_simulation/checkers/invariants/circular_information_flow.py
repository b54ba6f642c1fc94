"""Circular information flow (G1c): committed transactions received messages from each other, in a circle."""

from __future__ import annotations

from collections import defaultdict

from txnframework_simulation.checkers.facts import Facts
from txnframework_simulation.checkers.transactions import ABORTED
from txnframework_simulation.checkers.violations import Violation, violation
from txnframework_simulation.history import Acknowledge, Call, MessagePosition, Receive, Received, SeenMessage

NAME = "circular information flow"


def check(facts: Facts) -> list[Violation]:
    """Check a history."""
    flows = _flows(facts)
    found = []
    for circle in _circles({txn: list(to) for txn, to in flows.items()}):
        steps = [flows[one][two] for one, two in zip(circle, (*circle[1:], circle[0]), strict=True)]
        values = ", ".join(f"{seen.value!r}" for seen, _ in steps)
        sentence = f"transactions {', '.join(circle)} have read from each other in a cycle: {values}"
        found.append(violation(NAME, sentence, [call for _, call in steps]))
    return found


def _flows(facts: Facts) -> dict[str, dict[str, tuple[SeenMessage, Call]]]:
    """
    Return, by writing transaction, the transactions that read its messages, each with a message and the call that shows
    it.
    """
    written = {one.seen.place: one.seen for one in facts.observations.committed if one.seen.txn is not None}
    flows: defaultdict[str, dict[str, tuple[SeenMessage, Call]]] = defaultdict(dict)

    def flow(to: str, place: MessagePosition, call: Call) -> None:
        seen = written.get(place)
        transaction = facts.transactions.get(to)
        if seen is None or seen.txn is None or transaction is None or transaction.state == ABORTED:
            return
        if seen.txn != to:
            flows[seen.txn].setdefault(to, (seen, call))

    for call in facts.calls:
        match call.operation, call.reply:
            case Receive(txn=str(txn)), Received(messages=messages):
                for seen in messages:
                    flow(txn, seen.place, call)
            case Acknowledge(txn=str(txn), messages=acked), _ if call.ok:
                for one in acked:
                    flow(txn, one.place, call)
    return dict(flows)


def _circles(edges: dict[str, list[str]]) -> list[list[str]]:
    """
    Return circles without common nodes.

    The search is depth first, and not recursive because paths may be long.
    """
    done: set[str] = set()
    found = []
    for root in edges:
        if root in done:
            continue
        path = [root]
        at = {root: 0}
        ways = [iter(edges.get(root, ()))]
        while path:
            step = next(ways[-1], None)
            if step is None:
                done.add(path[-1])
                del at[path.pop()]
                ways.pop()
            elif step in at:
                circle = path[at[step] :]
                found.append(circle)
                # Leave this circle, so that it is reported once.
                for node in path[at[step] + 1 :]:
                    done.add(node)
                del path[at[step] + 1 :], ways[at[step] + 1 :]
                for node in circle[1:]:
                    del at[node]
            elif step not in done:
                at[step] = len(path)
                path.append(step)
                ways.append(iter(edges.get(step, ())))
    return found
