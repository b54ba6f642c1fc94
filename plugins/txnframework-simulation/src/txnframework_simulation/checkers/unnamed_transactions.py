"""Transactions that one call begins and ends: its caller does not know their ids, and readers of the messages do."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from txnframework_simulation.checkers.observations import Observations
from txnframework_simulation.history import UNNAMED, Begun, Call, Send


def with_ids(calls: list[Call]) -> list[Call]:
    """
    Replace the names of such transactions by the ids that clients saw at their messages.

    A name stays if no client saw a message of the transaction. Of several ids, one that was seen as committed is taken:
    the call may have aborted a first transaction, and performed the operations in another one.
    """
    names: dict[tuple[str, str], str] = {}
    for call in calls:
        send = call.operation
        if isinstance(send, Send) and send.txn is not None and send.txn.startswith(UNNAMED):
            names[send.topic, send.value] = send.txn
    if not names:
        return calls
    ids: dict[str, str] = {}
    seen = Observations.of(calls)
    for one in (*seen.committed, *seen.others):
        name = names.get((one.seen.place.topic, one.seen.value))
        if name is not None and one.seen.txn is not None:
            ids.setdefault(name, one.seen.txn)
    return [_renamed(call, ids) for call in calls]


def _renamed(call: Call, ids: dict[str, str]) -> Call:
    if isinstance(call.reply, Begun) and call.reply.txn in ids:
        return replace(call, reply=Begun(ids[call.reply.txn]))
    known = ids.get(getattr(call.operation, "txn", None) or "")
    return call if known is None else replace(call, operation=msgspec.structs.replace(call.operation, txn=known))
