"""The report of an audit: what it checks, what it found, and the file that it is written to."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, Self

import msgspec

from txnframework.errors import InvalidInput

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


class AuditFinding(msgspec.Struct, frozen=True, order=True):
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


class LedgerReport(msgspec.Struct, frozen=True):
    """One ledger with entries, as it was read; ``hash`` does not depend on how the ledger was cut into pieces."""

    name: str
    ledger: int
    entries: int
    messages: int
    bytes: int
    hash: str


class AuditReport(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The result of an audit; ``checks``: the number of findings of each check that was made."""

    format: int = 2
    store: str
    created_ms: int
    flows: list[str]
    transactions: int
    checks: dict[str, int]
    findings: list[AuditFinding]
    ledgers: list[LedgerReport]

    def summary(self) -> dict[str, object]:
        """Return the report with totals instead of the ledgers."""
        document: dict[str, object] = msgspec.to_builtins(self)
        totals = {name: sum(getattr(one, name) for one in self.ledgers) for name in ("entries", "messages", "bytes")}
        return document | {"ledgers": len(self.ledgers)} | totals

    def write(self, file: Path) -> None:
        """Write the report; it becomes visible in one step."""
        partial = file.with_name(f"{file.name}.partial")
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(self)))
        partial.rename(file)

    @classmethod
    def load(cls, file: Path, store: str) -> Self:
        """
        Return an earlier report.

        :raises InvalidInput: the file is not the report of an audit, or one of other stores.
        """
        try:
            found = msgspec.json.decode(file.read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError) as error:
            raise InvalidInput(f"{file} is not a readable report of an audit: {error}") from error
        if found.store != store:
            raise InvalidInput(f"{file} is the report of store {found.store}, and this is {store}")
        return found


def require_new(file: Path) -> None:
    """Raise InvalidInput if the file exists."""
    if file.exists():
        raise InvalidInput(f"{file} exists; name a new file for each report")


def by_check(findings: Iterable[AuditFinding]) -> dict[str, list[AuditFinding]]:
    """Return the findings of each check, sorted, with an empty list for a check that found nothing."""
    found: dict[str, list[AuditFinding]] = {check: [] for check in CHECKS}
    for one in sorted(set(findings)):
        found[one.check].append(one)
    return found
