"""What the REST API says of topics, messages and transactions; pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from txnframework.client import SubscriptionDescription, TopicDescription
from txnframework.model.names import topic_of
from txnframework.model.transactions import Participant, Transaction
from txnframework_pulsar.ids import txn_bits
from txnframework_pulsar.names import pulsar_name
from txnframework_pulsar.wire import messages_pb2 as pb

NO_INDEX = -1


def topic_statistics(described: TopicDescription) -> dict[str, Any]:
    """
    Return the statistics of a topic. What the gateway does not measure is left out: clients then show zero.

    ``msgInCounter``: the stored messages. ``waitingForTransactions`` is not of Pulsar: the messages that cannot be read
    yet, because an open transaction wrote the first of them.
    """
    return {
        "msgInCounter": sum(one.messages for one in described.segments),
        "waitingForTransactions": sum(one.undecided for one in described.segments),
        "subscriptions": {one.subscription: _subscription(one) for one in described.subscriptions},
        "publishers": [],
        "replication": {},
    }


def _subscription(described: SubscriptionDescription) -> dict[str, Any]:
    holders = list(dict.fromkeys(described.holders.values()))
    return {
        "msgBacklog": described.lag.messages,
        "durable": True,
        "activeConsumerName": holders[0] if len(holders) == 1 else None,
        "consumers": [],
    }


def message_place(place: pb.MessageId) -> dict[str, int]:
    """Return the id of a message."""
    return {"ledgerId": place.ledger_id, "entryId": place.entry_id, "partitionIndex": NO_INDEX}


def transaction_metadata(found: Transaction) -> dict[str, Any]:
    """Return a transaction with the topics and subscriptions that take part in it."""
    most, least = txn_bits(found.txn_id)
    produced: dict[str, dict[str, Any]] = {}
    acknowledged: dict[str, dict[str, Any]] = {}
    for one in sorted(found.participants):
        topic = _topic(one)
        if one.subscription:
            acknowledged.setdefault(topic, {})[one.subscription] = {}
        else:
            produced[topic] = {}
    return {
        "txnId": f"({most},{least})",
        "openTimestamp": found.created_ms,
        "timeoutAt": found.deadline_ms - found.created_ms,
        "status": found.state.name,
        "owner": found.process or "",
        "producedPartitions": produced,
        "ackedPartitions": acknowledged,
    }


def slow_transactions(found: Iterable[Transaction]) -> dict[str, Any]:
    """Return transactions by their ids."""
    each = map(transaction_metadata, found)
    return {one["txnId"]: one for one in each}


def _topic(participant: Participant) -> str:
    return pulsar_name(topic_of(participant.segment))
