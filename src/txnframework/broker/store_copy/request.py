"""What an operator asks of a copy, and what is reported of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from txnframework.broker.store_copy.audit import AuditReport


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """
    The operator's choices.

    ``keep_source``: the source is opened again, and both deployments go on, apart from each other. ``dry_run``: report
    what would be copied.
    """

    keep_source: bool = False
    dry_run: bool = False


@dataclass(slots=True)
class CopyReport:
    """
    What was copied by this call, or would be.

    ``audit``: the comparison at the end; None: this call made none. ``was_complete``: an earlier call has completed the
    copy, and this one did nothing.
    """

    source_identity: str
    identity: str
    ledgers: int = 0
    entries: int = 0
    sequences: int = 0
    records: int = 0
    audit: AuditReport | None = None
    was_complete: bool = False
    families: dict[str, int] = field(default_factory=dict)
