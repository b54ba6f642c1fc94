"""The pieces of an audit: how ledgers are cut, and what a task says of an entry."""

from __future__ import annotations

from txnframework.model.entries import EntryMessage, encode_entry
from txnframework.model.ids import Branch, TxnID
from txnframework.model.ledger import LedgerEntry, LedgerSummary
from txnframework.model.positions import Position
from txnframework.model.records import HistoryDocument
from txnframework.model.transactions import Application, CommittedBatch, SourceRange
from txnframework_spark.jobs.audit.acknowledgments import check_batches
from txnframework_spark.jobs.audit.deployment import Deployment, Piece, cut
from txnframework_spark.jobs.audit.entries import row_of

SEGMENT = "segment://public/default/in/0000-ffff-0"
ABORTED = Branch(TxnID(0, 7))


def entry(number: int, branch: Branch | None = None) -> LedgerEntry:
    message = EntryMessage(None, b"%d" % number, (), number, 1_000 + number)
    return LedgerEntry(Position(3, number), encode_entry([message], "p", branch))


def test_a_ledger_is_cut_by_messages() -> None:
    deployment = Deployment(
        ledgers={(SEGMENT, 3): LedgerSummary(3, 10, 1_000, 1, 0), (SEGMENT, 4): LedgerSummary(4, 0, 0, 0, 0)}
    )
    assert [(one.first, one.last) for one in cut(deployment, 400)] == [(0, 3), (4, 7), (8, 9)]
    assert [(one.first, one.last) for one in cut(deployment, 1)] == [(number, number) for number in range(10)]


def test_an_entry_is_seen_as_readers_see_it() -> None:
    """It is visible, aborted, or not decided yet."""
    piece = Piece(SEGMENT, 3, 0, 2, readable=Position(3, 1))
    rows = [row_of(piece, one, frozenset({ABORTED})) for one in (entry(0, ABORTED), entry(1), entry(2, ABORTED))]
    assert [row.get("visible") for row in rows] == [False, True, None]
    assert [row.get("txn") for row in rows] == [str(ABORTED.txn_id), None, str(ABORTED.txn_id)]
    assert [row["messages"] for row in rows] == [1, 1, 1]


def test_a_damaged_entry_is_a_row_with_the_reason() -> None:
    row = row_of(Piece(SEGMENT, 3, 0, 0), LedgerEntry(Position(3, 0), b"damaged"), None)
    assert "3:0" in row["damage"]


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
