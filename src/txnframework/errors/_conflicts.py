"""Errors of calls that the present state forbids."""

from __future__ import annotations

from txnframework.errors._root import TxnFrameworkError, named_topic
from txnframework.values import Key, State, TxnID


class Conflict(TxnFrameworkError):
    """
    The present state forbids the call; nothing was changed.

    :known: Nothing was changed.
    :retry: decide
    :advice: Read the current state, then decide.
    """

    code = "TXN-200"


class VersionMismatch(Conflict):
    """
    The record at ``key`` does not have the expected version; nothing was changed.

    :known: Nothing was changed.
    :retry: decide
    :advice: Authors of plugins: read the record again, decide again, and write with its present version.
    """

    code = "TXN-201"

    def __init__(self, key: Key, actual: int | None) -> None:
        self.key = key
        self.actual = actual
        found = "is absent" if actual is None else f"has version {actual}"
        super().__init__(f"record {key.path} {found}, which was not expected")


class TransactionConflict(Conflict):
    """
    ``txn_id`` cannot do this: it has ended, or it conflicts with another transaction (``other``).

    :known: On that segment, this call sent and acknowledged nothing. If the transaction has ended, the call did not
        change its result: what it did before took effect if it was committed.
    :retry: transaction
    :advice: If it was committed, do only what was refused in a new transaction. Otherwise abort, and do all the work
        again in a new transaction. If it happens often, two consumers handle the same messages: look at the
        subscription's type.
    """

    code = "TXN-202"

    def __init__(self, txn_id: TxnID | None, reason: str, other: TxnID | None = None) -> None:
        self.txn_id = txn_id
        self.reason = reason
        self.other = other
        super().__init__(f"transaction {txn_id}: {reason}" if txn_id else reason)


class InvalidTransactionState(Conflict):
    """
    ``txn_id`` has already ended, as ``actual``, or with other branches than requested.

    :known: The transaction has ended as ``actual``, and this call changed nothing. COMMITTED: what its commit included
        took effect. ABORTED: nothing took effect.
    :retry: decide
    :advice: If ``actual`` is ABORTED, do the work again in a new transaction; if the timeout aborted it, raise
        ``timeout_ms`` or do less in one transaction. If ``actual`` is COMMITTED, do not do the work again.
    """

    code = "TXN-203"

    def __init__(self, txn_id: TxnID, actual: State, reason: str) -> None:
        self.txn_id = txn_id
        self.actual = actual
        super().__init__(f"transaction {txn_id} is {actual.value}: {reason}")


class NotTransactionOwner(Conflict):
    """
    ``principal`` may not end or add to ``txn_id``; nothing was changed.

    :known: Nothing was changed.
    :retry: never
    :advice: End the transaction as the principal that began it.
    """

    code = "TXN-204"

    def __init__(self, txn_id: TxnID, principal: str) -> None:
        self.txn_id = txn_id
        self.principal = principal
        super().__init__(f"transaction {txn_id} does not belong to principal {principal!r}")


class TransactionHasFailedOperations(Conflict):
    """
    A send or acknowledgment in ``txn_id`` failed, so the transaction was aborted instead of committed.

    :known: The transaction is aborted; the error's cause is the first failure.
    :retry: transaction
    :advice: Look up the cause, then do the work again in a new transaction.
    """

    code = "TXN-205"

    def __init__(self, txn_id: TxnID, failure: BaseException | None = None) -> None:
        self.txn_id = txn_id
        shown = "" if failure is None else f" ({str(failure) or type(failure).__name__})"
        super().__init__(f"transaction {txn_id} was aborted: a send or acknowledgment in it had failed{shown}")


class TransactionDomainMismatch(Conflict):
    """
    The transaction's family does not serve the topic; ``reason``: which one does, or what is missing.

    :known: Nothing was written.
    :retry: never
    :advice: Use topics of one family in a transaction, or configure the same family for their domains.
    """

    code = "TXN-206"

    def __init__(self, txn_id: TxnID, family: str, topic: str, reason: str = "") -> None:
        self.txn_id = txn_id
        self.family = family
        self.topic = topic
        self.reason = reason
        why = f": {reason}" if reason else ""
        super().__init__(f"transaction {txn_id} belongs to the {family} family, which does not serve {topic}{why}")


class Fenced(Conflict):
    """
    A newer run or owner has taken over; this one must stop. ``what`` was taken, by ``holder`` if known.

    :known: What this run had not committed is aborted or belongs to the newer run.
    :retry: never
    :advice: Stop this process. If no newer run should exist, look for a second copy of the program.
    """

    code = "TXN-207"

    def __init__(self, what: str, holder: str = "") -> None:
        self.what = what
        self.holder = holder
        super().__init__(f"{what} was taken over by {holder or 'a newer run'}; this one must stop")


class LeaseHeld(Conflict):
    """
    Another session holds the lease; ``key`` can be watched for its end.

    :known: Nothing was changed.
    :retry: call
    :advice: Wait until the lease ends, which a watch on ``key`` reports, then try again.
    """

    code = "TXN-208"

    def __init__(self, name: str, holder: str, key: Key) -> None:
        self.name = name
        self.holder = holder
        self.key = key
        super().__init__(f"lease {name} is held by {_shown(holder)}")


class SubscriptionOwnedElsewhere(Conflict):
    """
    Another process dispatches this subscription; ``holder`` names it.

    :known: Nothing was changed.
    :retry: reopen
    :advice: Close the other consumer, or wait some seconds if its process died. ``stand_by=True`` waits. A topic needs
        at least as many segments as processes.
    """

    code = "TXN-209"

    def __init__(self, segment: str, subscription: str, holder: str) -> None:
        self.segment = segment
        self.subscription = subscription
        self.holder = holder
        super().__init__(
            f"subscription {subscription} of {segment} is dispatched by {_shown(holder)}, and by one process at a time:"
            " try again when that one has closed, or some seconds after it died; stand_by=True or the subscription type"
            " 'failover' waits for that"
        )


class ConsumerBusy(Conflict):
    """
    The subscription allows only one consumer and has one: ``consumer``.

    :known: Nothing was changed.
    :retry: reopen
    :advice: Close ``consumer``, or open with ``stand_by=True`` to wait until it closes. Subscriptions of type
        ``shared`` allow several.
    """

    code = "TXN-210"

    def __init__(self, subscription: str, consumer: str) -> None:
        self.subscription = subscription
        self.consumer = consumer
        super().__init__(f"subscription {subscription} already has its one consumer, {consumer}")


class TopicExists(Conflict):
    """
    The topic already exists.

    :known: Nothing was changed.
    :retry: decide
    :advice: Pass ``exist_ok=True`` if an existing topic is fine.
    """

    code = "TXN-211"

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"{named_topic(topic)} already exists")


class TopicInUse(Conflict):
    """
    The topic was not deleted: ``reason`` says what still uses it.

    :known: The topic was not deleted.
    :retry: decide
    :advice: End what ``reason`` names, or delete by force.
    """

    code = "TXN-212"

    def __init__(self, topic: str, reason: str, advice: str = "delete it by force to end that") -> None:
        self.topic = topic
        self.reason = reason
        super().__init__(f"{named_topic(topic)} is in use: {reason}; {advice}")


class LayoutConflict(Conflict):
    """
    The segment layout of ``topic`` does not allow this split or merge.

    :known: Nothing was changed.
    :retry: decide
    :advice: List the segments again, then choose segments that exist and can be split or merged.
    """

    code = "TXN-213"

    def __init__(self, topic: str, reason: str) -> None:
        self.topic = topic
        super().__init__(f"{named_topic(topic)}: {reason}")


class MigrationRefused(Conflict):
    """
    The migration of ``topic`` cannot begin, continue or be rolled back; ``reason`` says what is in the way.

    :known: Nothing was changed by this call.
    :retry: decide
    :advice: Remove what ``reason`` names, or leave the topic in its family.
    """

    code = "TXN-220"

    def __init__(self, topic: str, reason: str) -> None:
        self.topic = topic
        self.reason = reason
        super().__init__(f"{named_topic(topic)} cannot migrate: {reason}")


class CommitOrderUnknown(Conflict):
    """
    Messages of ``segment`` cannot be sorted by commit time; ``reason`` says which information is missing.

    :known: Nothing was changed.
    :retry: never
    :advice: Compact in the order of positions.
    """

    code = "TXN-214"

    def __init__(self, segment: str, reason: str) -> None:
        self.segment = segment
        self.reason = reason
        super().__init__(f"the order of commits in {segment} is unknown: {reason}; use the order of positions")


class CompactedInOtherOrder(Conflict):
    """
    ``segment`` was compacted in the order of commits, and the messages that were left out have been trimmed since.

    :known: Nothing was changed.
    :retry: never
    :advice: Continue to compact in the order of commits.
    """

    code = "TXN-215"

    def __init__(self, segment: str) -> None:
        self.segment = segment
        super().__init__(
            f"{segment} cannot be compacted in the order of positions: it was compacted in the order of commits, and"
            " its first messages were trimmed since"
        )


class BacklogQuotaExceeded(Conflict):
    """
    ``subscription`` of ``topic`` is too far behind. ``backlog`` and ``quota``: messages and bytes; -1: without limit.

    :known: No message of this call was stored. A transaction that it belongs to can only be aborted.
    :retry: call
    :advice: Let its consumers catch up, delete an unused subscription, or raise the quota; then send again.
    """

    code = "TXN-221"

    def __init__(self, topic: str, subscription: str, backlog: tuple[int, int], quota: tuple[int, int]) -> None:
        self.topic = topic
        self.subscription = subscription
        self.backlog = backlog
        self.quota = quota
        behind = f"{subscription} is {backlog[0]} messages ({backlog[1]} bytes) behind"
        super().__init__(f"the backlog quota of {named_topic(topic)} is exceeded: subscription {behind}")


def _shown(holder: str) -> str:
    """Return a holder for a sentence: one without a consumer begins with the preposition before its process."""
    return holder.removeprefix("on ")
