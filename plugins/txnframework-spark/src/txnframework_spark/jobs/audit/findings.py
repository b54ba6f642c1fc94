"""What an audit may find, and where."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

CHECKS: Final = {
    "missing-ledger": "every segment and every compacted copy that a record names is stored",
    "missing-entry": "a ledger has all its entries, without gaps",
    "damaged-entry": "every entry has its form and its checksum",
    "wrong-count": "a ledger's entries have the messages and the bytes that the ledger states",
    "torn-transaction": "a transaction counts in every topic that it wrote to, or in none of them",
    "wrong-outcome": "readers see what the transaction's record says",
    "unknown-transaction": "every transaction was begun by a coordinator of this deployment",
    "aborted-compacted": "no aborted entry is in a compacted copy",
    "changed-copy": "a compacted copy has the content of the original",
    "missing-copy": "a compacted copy has every entry that counts",
    "stray-copy": "every compacted entry has an original, and is there once",
    "cursor-beyond-end": "no subscription is beyond the end of its segment, and nothing is trimmed beyond it",
    "batch-without-commit": "what a pipeline's batch acknowledged was committed by that batch",
    "missing-output": "every acknowledged input has its output",
    "changed-ledger": "no entry has changed since the earlier audit",
}
"""The checks of an audit by name: what is proved."""

FINDINGS_MAX: Final = 1_000
"""The most findings of each check that a report names."""


@dataclass(frozen=True, slots=True, order=True)
class AuditFinding:
    """
    A contradiction in what is stored.

    ``check``: one of ``CHECKS``. ``name``: the managed ledger, topic or subscription. ``ledger`` and ``entry``: the
    position in it; -1: the finding is about more than one. ``transaction``: empty if it is about none, or not known.
    """

    check: str
    name: str
    ledger: int = -1
    entry: int = -1
    transaction: str = ""
    detail: str = ""


def by_check(findings: Iterable[AuditFinding]) -> dict[str, list[AuditFinding]]:
    """Return the findings of each check, sorted, with an empty list for a check that found nothing."""
    found: dict[str, list[AuditFinding]] = {check: [] for check in CHECKS}
    for one in sorted(set(findings)):
        found[one.check].append(one)
    return found
