"""Conflicts with the state of a ledger, or of the stores of a deployment."""

from __future__ import annotations

from txnframework.errors._conflicts import Conflict


class LedgerClosed(Conflict):
    """
    ``ledger_id`` of ``name`` is no longer the open one; nothing was appended.

    :known: Nothing was appended.
    :retry: decide
    :advice: Authors of plugins: open the ledger again, and append to the one that is open now.
    """

    code = "TXN-216"

    def __init__(self, name: str, ledger_id: int) -> None:
        self.name = name
        self.ledger_id = ledger_id
        super().__init__(f"ledger {ledger_id} of {name} is closed")


class LedgerSealed(Conflict):
    """
    ``name`` is sealed permanently; nothing was appended.

    :known: Nothing was appended.
    :retry: reopen
    :advice: Send to the topic instead of the segment; it routes to the segment's successors.
    """

    code = "TXN-217"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"{name} is sealed permanently; send to its topic, which routes to its successors")


_LEDGER_OLDER = (
    "the ledger store is older than the metadata store, as after a restore from a backup or a failover that lost its"
    " end; stop every process that uses the stores, and run 'txnframework restore --restored ledger'"
)


class StoreMismatch(Conflict):
    """
    Metadata store and ledger do not belong together: they never did, or one of them is older than the other.

    :known: Nothing was opened, and nothing was appended.
    :retry: never
    :advice: Check that both URLs name the same installation. If one store was restored from a backup, or failed over to
        a standby that lagged behind, run ``txnframework restore``.
    """

    code = "TXN-218"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(self.sentence(reason))

    def sentence(self, reason: str) -> str:
        """Return the message."""
        return f"metadata store and ledger do not belong together: {reason}"


def lost_end(what: str, segment: str, end: object) -> StoreMismatch:
    """Return the error for a segment that ends before a known position; ``what`` names the position."""
    return StoreMismatch(f"{what} of {segment}, which ends at {end}: {_LEDGER_OLDER}")


def lost_segment(segment: str) -> StoreMismatch:
    """Return the error for a segment that a topic has, and whose ledger does not exist."""
    return StoreMismatch(f"{segment} belongs to a topic, and has no ledger: {_LEDGER_OLDER}")


class DeploymentClosed(StoreMismatch):
    """
    The deployment was copied to other stores, or is being copied, and was closed by that.

    :known: Nothing was opened.
    :retry: never
    :advice: Use the configuration of the copy. ``txnframework copy --help`` says how to open the old stores again.
    """

    code = "TXN-219"

    def sentence(self, reason: str) -> str:
        """Return the message."""
        return reason
