"""The client: transactions, producers, consumers and readers on a host."""

from __future__ import annotations

from txnframework.broker import (
    Compactor,
    DecidedMessage,
    FamilyStatus,
    HangingTransaction,
    HeldLease,
    Lag,
    LatestByKey,
    SegmentDescription,
    SegmentLag,
    SubscriptionDescription,
    SubscriptionPosition,
    TopicDescription,
    UndecidedMessages,
)
from txnframework.client._admin import create_topic
from txnframework.client._base import Name
from txnframework.client._client import Client
from txnframework.client._consumer import Consumer
from txnframework.client._dead_letters import DeadLetter
from txnframework.client._health import Ping
from txnframework.client._messages import Message, MessageID
from txnframework.client._opened_client import ConfigSource, open
from txnframework.client._planned import PlannedAck, PlannedSend
from txnframework.client._producer import Producer
from txnframework.client._reader import Reader
from txnframework.client._snapshots import Snapshot
from txnframework.client._transaction import JoinedTransaction, Transaction, TransactionPart
from txnframework.client._transaction_admin import parse_txn_id
from txnframework.client.loop_thread import LoopThread

__all__ = [
    "Client",
    "Compactor",
    "ConfigSource",
    "Consumer",
    "DeadLetter",
    "DecidedMessage",
    "FamilyStatus",
    "HangingTransaction",
    "HeldLease",
    "JoinedTransaction",
    "Lag",
    "LatestByKey",
    "LoopThread",
    "Message",
    "MessageID",
    "Name",
    "Ping",
    "PlannedAck",
    "PlannedSend",
    "Producer",
    "Reader",
    "SegmentDescription",
    "SegmentLag",
    "Snapshot",
    "SubscriptionDescription",
    "SubscriptionPosition",
    "TopicDescription",
    "Transaction",
    "TransactionPart",
    "UndecidedMessages",
    "create_topic",
    "open",
    "parse_txn_id",
]
