"""Failures of the moment: what may help is another attempt, or another object."""

from __future__ import annotations

from txnframework.errors._root import TxnFrameworkError
from txnframework.values import TxnID


class Unavailable(TxnFrameworkError):
    """
    The operation could not be done now, and nothing was changed; trying again may help.

    :known: Nothing was changed.
    :retry: call
    :advice: Wait, then repeat the call. The text names the store and what it reported.
    """

    code = "TXN-400"


class ReceiveTimeout(Unavailable):
    """
    No message became visible in time.

    :known: No message was received, and none is lost.
    :retry: call
    :advice: Call ``receive`` again. If messages were expected, look for an open transaction that holds them back:
        ``txnframework transaction find-hanging``. If the text names a limit, acknowledge messages first.
    """

    code = "TXN-401"

    def __init__(self, timeout_ms: int, *, is_at_limit: bool = False) -> None:
        self.timeout_ms = timeout_ms
        self.is_at_limit = is_at_limit
        """Whether messages wait until the consumer acknowledges some."""
        limit = "; more wait, but the consumer has as many unacknowledged ones as the configuration allows"
        super().__init__(f"no message within {timeout_ms} ms{limit if is_at_limit else ''}")


class EndTransactionTimeout(Unavailable):
    """
    Not every participant was reached in time; the decision is final, and its outcome can be read.

    :known: The decision is final. It has not taken effect at every participant yet.
    :retry: commit
    :advice: Repeat the commit or the abort, or ask for the outcome; maintenance finishes the rest.
    """

    code = "TXN-402"

    def __init__(self, txn_id: TxnID, timeout_ms: int) -> None:
        self.txn_id = txn_id
        self.timeout_ms = timeout_ms
        super().__init__(f"transaction {txn_id} did not end at every participant within {timeout_ms} ms")


class OutcomeUnknown(TxnFrameworkError):
    """
    The operation may or may not have been applied; read before trying again.

    :known: The operation may have taken effect or not.
    :retry: commit
    :advice: After a commit, ask for the outcome or commit again. After a send outside of a transaction, send again with
        the same ``sequence_id``. Repeat an acknowledgment.
    """

    code = "TXN-410"


class LeaseLost(TxnFrameworkError):
    """
    The lease is lost, and the holder may no longer act under it.

    :known: Another process may hold the lease now. Unacknowledged messages are delivered again.
    :retry: reopen
    :advice: Open the consumer again. If it happens often, the process or its store was paused for longer than the
        lease.
    """

    code = "TXN-420"

    def __init__(self, name: str, advice: str = "") -> None:
        self.name = name
        super().__init__(f"the lease {name!r} was lost" + (f"; {advice}" if advice else ""))


class Closed(TxnFrameworkError):
    """
    This object was closed; open another.

    :known: Nothing was done.
    :retry: reopen
    :advice: Open another object. Close an object only after its last call has returned.
    """

    code = "TXN-430"
