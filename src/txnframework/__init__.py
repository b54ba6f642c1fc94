"""
Transactional messaging: atomic produce and acknowledge over many topics, on the stores you choose.

::

    async with txnframework.open("txnframework.toml") as client:
        consumer = await client.consumer("topic://public/default/orders", "billing")
        producer = await client.producer("topic://public/default/invoices")
        async for order in consumer:
            async with client.transaction() as txn:
                await producer.send(invoice(order.value), txn=txn)
                await consumer.ack(order, txn=txn)

The invoice becomes visible and the order is acknowledged together, or neither happens. ``txnframework.blocking`` has
the same names for synchronous programs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from txnframework import blocking, errors
    from txnframework.client import (
        Client,
        Compactor,
        Consumer,
        DeadLetter,
        DecidedMessage,
        FamilyStatus,
        HangingTransaction,
        HeldLease,
        JoinedTransaction,
        Lag,
        LatestByKey,
        Message,
        MessageID,
        Ping,
        PlannedAck,
        PlannedSend,
        Producer,
        Reader,
        SegmentDescription,
        SegmentLag,
        Snapshot,
        SubscriptionDescription,
        SubscriptionPosition,
        TopicDescription,
        Transaction,
        TransactionPart,
        UndecidedMessages,
        open,
    )
    from txnframework.errors import (
        Closed,
        Conflict,
        InvalidInput,
        InvalidTransactionState,
        NotFound,
        OutcomeUnknown,
        ReceiveTimeout,
        TransactionConflict,
        TransactionHasFailedOperations,
        TransactionNotFound,
        TxnFrameworkError,
        Unavailable,
    )
    from txnframework.model import AckState, AckStatus, Isolation, Position, State, TopicName, TxnID

__version__ = "0.1.0"

__all__ = [
    "AckState",
    "AckStatus",
    "Client",
    "Closed",
    "Compactor",
    "Conflict",
    "Consumer",
    "DeadLetter",
    "DecidedMessage",
    "FamilyStatus",
    "HangingTransaction",
    "HeldLease",
    "InvalidInput",
    "InvalidTransactionState",
    "Isolation",
    "JoinedTransaction",
    "Lag",
    "LatestByKey",
    "Message",
    "MessageID",
    "NotFound",
    "OutcomeUnknown",
    "Ping",
    "PlannedAck",
    "PlannedSend",
    "Position",
    "Producer",
    "Reader",
    "ReceiveTimeout",
    "SegmentDescription",
    "SegmentLag",
    "Snapshot",
    "State",
    "SubscriptionDescription",
    "SubscriptionPosition",
    "TopicDescription",
    "TopicName",
    "Transaction",
    "TransactionConflict",
    "TransactionHasFailedOperations",
    "TransactionNotFound",
    "TransactionPart",
    "TxnFrameworkError",
    "TxnID",
    "Unavailable",
    "UndecidedMessages",
    "blocking",
    "errors",
    "open",
]

if not TYPE_CHECKING:  # a type checker sees the imports above, with the exact type of each name

    def __getattr__(name: str) -> object:
        """Import a name on first use, so that the command line and programs that need only the errors start fast."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name in ("blocking", "errors"):
            return import_module(f"{__name__}.{name}")
        places = map(import_module, (f"{__name__}.errors", f"{__name__}.client", f"{__name__}.model"))
        found = next(getattr(place, name) for place in places if hasattr(place, name))
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
