"""The folder of an audit's report: Parquet for programs, one HTML page for people."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from txnframework.broker import HashSum
from txnframework.errors import InvalidInput
from txnframework.model.ledger import LedgerSummary
from txnframework.model.names import SEGMENT, topic_of
from txnframework_spark.errors import UnusableFolder
from txnframework_spark.jobs.audit.findings import AuditFinding

LEDGERS: Final = "ledgers.parquet"
FINDINGS: Final = "findings.parquet"
TRANSACTIONS: Final = "transactions"
PAGE: Final = "index.html"
FACTS: Final = "audit.json"

_LEDGER_FIELDS: Final = pa.schema(
    [
        ("name", pa.string()),
        ("ledger", pa.int64()),
        ("entries", pa.int64()),
        ("messages", pa.int64()),
        ("aborted", pa.int64()),
        ("undecided", pa.int64()),
        ("bytes", pa.int64()),
        ("hash", pa.string()),
        ("first_ms", pa.int64()),
        ("last_ms", pa.int64()),
    ]
)
_FINDING_FIELDS: Final = pa.schema(
    [
        ("check", pa.string()),
        ("name", pa.string()),
        ("ledger", pa.int64()),
        ("entry", pa.int64()),
        ("transaction", pa.string()),
        ("detail", pa.string()),
    ]
)


@dataclass(slots=True)
class LedgerReport:
    """
    One ledger with entries, as it was read; ``hash`` does not depend on how the ledger was cut into pieces.

    ``messages``: all of them, among which ``aborted`` and ``undecided`` ones are not visible to readers. ``first_ms``
    and ``last_ms``: the earliest and latest publish time; None: not known.
    """

    name: str
    ledger: int
    entries: int
    messages: int
    aborted: int
    undecided: int
    bytes: int
    hash: str
    first_ms: int | None
    last_ms: int | None

    @property
    def topic(self) -> str:
        """The topic of a segment; another managed ledger is its own."""
        return str(topic_of(self.name)) if self.name.startswith(f"{SEGMENT}://") else self.name


class AuditFacts(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What an audit read in all; ``checks``: the number of findings of each."""

    store: str
    created_ms: int
    ledgers: int
    entries: int
    messages: int
    bytes: int
    transactions: int
    checks: dict[str, int]
    flows: list[str]
    format: int = 1


@dataclass(slots=True)
class AuditResult:
    """The result of an audit; ``findings`` by check, also those without any."""

    facts: AuditFacts
    ledgers: list[LedgerReport] = field(default_factory=list)
    findings: Mapping[str, list[AuditFinding]] = field(default_factory=dict)

    @property
    def found(self) -> list[AuditFinding]:
        """All findings."""
        return [one for found in self.findings.values() for one in found]


def require_new(folder: Path) -> None:
    """Raise UnusableFolder unless the folder is missing or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UnusableFolder(str(folder), "is not empty; name a new folder for each report")


def write_report(folder: Path, result: AuditResult, page: str) -> None:
    """Write everything but the transactions, which tasks write."""
    ledgers = pa.Table.from_pylist([asdict(one) for one in result.ledgers], _LEDGER_FIELDS)
    pq.write_table(ledgers, folder / LEDGERS)
    pq.write_table(pa.Table.from_pylist([asdict(one) for one in result.found], _FINDING_FIELDS), folder / FINDINGS)
    (folder / FACTS).write_bytes(msgspec.json.format(msgspec.json.encode(result.facts)))
    (folder / PAGE).write_text(page, encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Earlier:
    """An earlier report, as far as a later audit is compared with it: entries and hash by managed ledger and ledger."""

    ledgers: Mapping[tuple[str, int], tuple[int, str]]

    @classmethod
    def load(cls, folder: Path, store: str) -> Earlier:
        """
        Load the report in a folder.

        :raises UnusableFolder: it is not the report of an audit.
        :raises InvalidInput: it is a report about other stores.
        """
        try:
            facts = msgspec.json.decode((folder / FACTS).read_bytes(), type=AuditFacts)
            rows = pq.read_table(folder / LEDGERS).to_pylist()
        except (OSError, msgspec.MsgspecError, pa.ArrowException) as error:
            raise UnusableFolder(str(folder), f"has no readable report of an audit: {error}") from error
        if facts.store != store:
            raise InvalidInput(f"{folder} is the report of store {facts.store}, and this is {store}")
        return cls({(row["name"], row["ledger"]): (row["entries"], row["hash"]) for row in rows})

    @property
    def entries(self) -> dict[tuple[str, int], int]:
        """The number of entries of each ledger."""
        return {place: entries for place, (entries, _) in self.ledgers.items()}

    def check(
        self,
        now: Mapping[tuple[str, int], LedgerSummary],
        pieces: Mapping[tuple[str, int], Iterable[Mapping[str, Any]]],
        gone: Collection[tuple[str, int]] = (),
    ) -> list[AuditFinding]:
        """
        Return the ledgers whose earlier entries have changed.

        A ledger that is gone was trimmed or deleted, unless an older one of the same name is left. ``pieces``: the rows
        of the pieces that were read, with ``last`` and ``hash``. ``gone``: the ledgers that were trimmed or deleted
        after they were listed, which are not compared.
        """
        found = []
        oldest: dict[str, int] = {}
        for name, ledger in now:
            oldest[name] = min(ledger, oldest.get(name, ledger))
        for (name, ledger), (entries, hashed) in self.ledgers.items():
            if (name, ledger) not in now:
                if ledger > oldest.get(name, ledger):
                    found.append(
                        AuditFinding("changed-ledger", name, ledger, detail=f"its {entries} entries are missing")
                    )
                continue
            if (name, ledger) in gone:
                continue
            total = HashSum()
            for piece in pieces.get((name, ledger), ()):
                if piece["last"] < entries:
                    total.add_digest(piece["digest"])
            if total.count == entries and total.digest.hash == hashed:
                continue
            detail = f"its first {entries} entries had hash {hashed}, and now {total.count} of them have another one"
            found.append(AuditFinding("changed-ledger", name, ledger, detail=detail))
        return found
