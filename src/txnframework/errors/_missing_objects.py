"""Errors about objects that do not exist."""

from __future__ import annotations

from txnframework.errors._root import TxnFrameworkError, named_topic
from txnframework.values import Position, TxnID


class NotFound(TxnFrameworkError):
    """
    The named object does not exist.

    :known: Nothing was done.
    :retry: decide
    :advice: Correct the name, or create the object.
    """

    code = "TXN-300"


class TransactionNotFound(NotFound):
    """
    ``txn_id`` never began, or ended longer ago than its outcome is kept.

    :known: No transaction with this id is known now. It may have committed or aborted.
    :retry: decide
    :advice: Check the id. Ask for outcomes sooner, or raise the time for which they are kept
        (``transactions.retention_ms``).
    """

    code = "TXN-301"

    def __init__(self, txn_id: TxnID) -> None:
        self.txn_id = txn_id
        super().__init__(
            f"transaction {txn_id} is not known: it never began, or ended longer ago than its outcome is kept"
        )


class TopicNotFound(NotFound):
    """
    The topic does not exist; ``deleted``: it existed before.

    :known: Nothing was done.
    :retry: decide
    :advice: Correct the name or create the topic. ``txnframework topic list`` lists all topics.
    """

    code = "TXN-302"

    def __init__(self, topic: str, *, deleted: bool = False) -> None:
        self.topic = topic
        self.deleted = deleted
        super().__init__(f"{named_topic(topic)} {'was deleted' if deleted else 'does not exist; create it first'}")


class SubscriptionNotFound(NotFound):
    """
    The subscription does not exist.

    :known: Nothing was done.
    :retry: decide
    :advice: Correct the name or create the subscription. ``txnframework subscription list`` lists those of a topic.
    """

    code = "TXN-303"

    def __init__(self, topic: str, subscription: str) -> None:
        self.topic = topic
        self.subscription = subscription
        super().__init__(f"{named_topic(topic)} has no subscription {subscription}")


class LedgerNotFound(NotFound):
    """
    No managed ledger has this name.

    :known: Nothing was done.
    :retry: decide
    :advice: Authors of plugins: create the ledger, or treat its segment as deleted.
    """

    code = "TXN-304"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"ledger {name} does not exist")


class EntryTrimmed(NotFound):
    """
    The entry at ``position`` existed and was trimmed; ``first`` is the first entry that is left, if any.

    :known: The message is gone; nothing was skipped.
    :retry: reopen
    :advice: Open the reader at ``first`` or at another position that exists. Retention decides how long messages are
        kept.
    """

    code = "TXN-305"

    def __init__(self, name: str, position: Position, first: Position | None = None) -> None:
        self.name = name
        self.position = position
        self.first = first
        super().__init__(f"entry {position} of {name} was trimmed")
