"""The pieces of an audit: how ledgers are cut, what is missing in them, and hashes that do not depend on the cuts."""

from __future__ import annotations

from txnframework.broker import HashSum
from txnframework.model.entries import EntryMessage, encode_entry
from txnframework.model.ids import Branch, TxnID
from txnframework.model.ledger import LedgerEntry, LedgerSummary
from txnframework.model.positions import Position
from txnframework.model.records import HistoryDocument
from txnframework.model.transactions import Application, CommittedBatch, SourceRange
from txnframework_spark.jobs.audit.acknowledgments import check_batches
from txnframework_spark.jobs.audit.deployment import Deployment, Piece, cut
from txnframework_spark.jobs.audit.findings import AuditFinding
from txnframework_spark.jobs.audit.pieces import BRANCH, ENTRY, READ, Tally
from txnframework_spark.jobs.audit.report import Earlier

SEGMENT = "segment://public/default/in/0000-ffff-0"
ABORTED = Branch(TxnID(0, 7))


def entry(number: int, branch: Branch | None = None) -> LedgerEntry:
    message = EntryMessage(None, b"%d" % number, (), number, 1_000 + number)
    return LedgerEntry(Position(3, number), encode_entry([message], "p", branch))


def read(piece: Piece, *entries: LedgerEntry) -> list[dict[str, object]]:
    tally = Tally(piece)
    rows = [row for one in entries for row in tally.add(one, frozenset({ABORTED}))]
    return [*rows, *tally.finish()]


def test_a_ledger_is_cut_by_messages_and_where_an_earlier_audit_ended() -> None:
    deployment = Deployment(
        ledgers={(SEGMENT, 3): LedgerSummary(3, 10, 1_000, 1, 0), (SEGMENT, 4): LedgerSummary(4, 0, 0, 0, 0)}
    )
    assert [(one.first, one.last) for one in cut(deployment, 400)] == [(0, 3), (4, 7), (8, 9)]
    earlier = {(SEGMENT, 3): 6, (SEGMENT, 4): 0}
    assert [(one.first, one.last) for one in cut(deployment, 400, earlier)] == [(0, 3), (4, 5), (6, 7), (8, 9)]
    assert [(one.first, one.last) for one in cut(deployment, 1)] == [(number, number) for number in range(10)]


def test_missing_entries_are_named_in_one_range_each() -> None:
    found = [row for row in read(Piece(SEGMENT, 3, 0, 8), entry(2), entry(3), entry(5)) if row["kind"] == "found"]
    assert [(row["check"], row["entry"], row["detail"]) for row in found] == [
        ("missing-entry", 0, "entries 0 to 1 are missing"),
        ("missing-entry", 4, "the entry is missing"),
        ("missing-entry", 6, "entries 6 to 8 are missing"),
    ]


def test_an_entry_counts_as_readers_see_it() -> None:
    """It is visible, aborted, or not decided yet; entries of a compacted part are named one by one."""
    piece = Piece(SEGMENT, 3, 0, 2, readable=Position(3, 1), copied=Position(3, 0))
    rows = read(piece, entry(0, ABORTED), entry(1), entry(2, ABORTED))
    (whole,) = [row for row in rows if row["kind"] == READ]
    assert (whole["messages"], whole["aborted"], whole["undecided"]) == (3, 1, 1)
    assert (whole["first_ms"], whole["last_ms"]) == (1_000, 1_002)
    assert [row["visible"] for row in rows if row["kind"] == BRANCH] == [False, None]
    assert [(row["entry"], row["visible"]) for row in rows if row["kind"] == ENTRY] == [(0, False)]


def test_an_earlier_report_is_compared_with_the_first_entries_only() -> None:
    def digest(*numbers: int) -> HashSum:
        total = HashSum()
        for number in numbers:
            total.add(3, number, entry(number).data)
        return total

    place = (SEGMENT, 3)
    earlier = Earlier({place: (2, digest(0, 1).digest.hash), (SEGMENT, 2): (5, ""), (SEGMENT, 4): (1, "")})
    now = {place: LedgerSummary(3, 3, 3, 1, 0), (SEGMENT, 5): LedgerSummary(5, 0, 0, 0, 0)}
    pieces = {place: [{"last": number, "digest": digest(number).digest} for number in range(3)]}
    lost = AuditFinding("changed-ledger", SEGMENT, 4, detail="its 1 entries are missing")
    assert earlier.check(now, pieces) == [lost], "ledger 2 was trimmed, as all before ledger 3"
    pieces[place][1]["digest"] = digest(2).digest
    assert [one.ledger for one in earlier.check(now, pieces)] == [3, 4]
    assert earlier.check(now, {}, {place}) == [lost], "ledger 3 was trimmed after it was listed"


def test_batches_that_an_earlier_application_of_the_query_has_forgotten_are_not_judged() -> None:
    def committed(first: int, last: int) -> tuple[CommittedBatch, ...]:
        return tuple(CommittedBatch("q", version, (range_of(version),)) for version in range(first, last))

    def range_of(version: int) -> SourceRange:
        return SourceRange("in", "g", {}, {SEGMENT: Position(3, version)})

    def application(name: str, *batches: CommittedBatch) -> Application:
        return Application(name, "r", (), "q", batches[-1].version, None, batches)

    def acknowledged(version: int) -> tuple[str, str, HistoryDocument]:
        start, end = str(Position(3, version - 1)), str(Position(3, version))
        return "in", "g", HistoryDocument(segment=SEGMENT, query="q", batch=version, start=start, end=end)

    # The history of a topic that is rarely written reaches back further than what the application remembers.
    histories = [acknowledged(3), *map(acknowledged, range(50, 155))]
    first, second = application("first", *committed(50, 150)), application("second", *committed(150, 155))
    assert check_batches(histories, [first, second]) == []
    assert check_batches(histories, [second, first]) == []
    lost = application("second", *committed(151, 155))
    assert [one.entry for one in check_batches(histories, [first, lost])] == [150]
    assert [one.entry for one in check_batches([acknowledged(3)], [second])] == [3]
