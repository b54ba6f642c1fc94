"""Whether a batch may be committed."""

from __future__ import annotations

import pytest

from txnframework.model.names import TopicName
from txnframework.model.positions import Position
from txnframework.model.transactions import Application, BatchID, CommittedBatch
from txnframework_spark.errors import ApplicationMixed, Diverged, MixedBatch, NotJudgeable, StateLost
from txnframework_spark.microbatch.registration import Range
from txnframework_spark.sink.verdict import (
    JOBS,
    AcknowledgedRange,
    BatchVerdict,
    judge_batch,
    judge_by_version,
    judge_job,
    require_kind,
    require_whole_state,
)

TOPIC = TopicName.parse("in")


def at(entry: int) -> Position:
    return Position(0, entry)


# -- by ranges ----------------------------------------------------------------------------------------


def acknowledged(start: int, end: int, cursor: int, incarnation: int = 1) -> AcknowledgedRange:
    planned = Range(str(TOPIC), "s", at(start), at(end), 1)
    return AcknowledgedRange(str(TOPIC), "sub", planned, at(cursor), incarnation)


@pytest.mark.parametrize(
    ("start", "end", "cursor", "verdict"),
    [
        (0, 5, 0, BatchVerdict.FRESH),
        (3, 5, 0, BatchVerdict.FRESH),
        (0, 5, 5, BatchVerdict.REPLAY),
        (0, 5, 9, BatchVerdict.REPLAY),
        (5, 5, 5, BatchVerdict.UNACKNOWLEDGED),
    ],
)
def test_a_range_is_fresh_from_the_cursor_on_and_a_replay_up_to_it(
    start: int, end: int, cursor: int, verdict: BatchVerdict
) -> None:
    assert judge_batch([acknowledged(start, end, cursor)]) is verdict


def test_a_range_that_the_cursor_stands_in_diverges() -> None:
    with pytest.raises(Diverged, match="inside"):
        judge_batch([acknowledged(0, 5, 3)])


def test_another_incarnation_diverges_whatever_the_positions_say() -> None:
    """Committing would take a confirmed seek back."""
    with pytest.raises(Diverged, match="seek"):
        judge_batch([acknowledged(0, 5, 0, incarnation=2)])


def test_replays_and_fresh_ranges_do_not_mix_and_empty_ones_do_not_count() -> None:
    with pytest.raises(MixedBatch):
        judge_batch([acknowledged(0, 5, 0), acknowledged(0, 5, 5)])
    assert judge_batch([acknowledged(0, 5, 5), acknowledged(7, 7, 0)]) is BatchVerdict.REPLAY
    assert judge_batch([]) is BatchVerdict.UNACKNOWLEDGED


# -- by numbers ---------------------------------------------------------------------------------------


def application(*committed: tuple[str, int]) -> Application:
    batches = tuple(CommittedBatch(query, version) for query, version in committed)
    return Application("app", "run", (), "q", 0, None, batches)


def batch(query: str, version: int) -> BatchID:
    return BatchID("app", query, "run", version)


@pytest.mark.parametrize(
    ("committed", "version", "verdict"),
    [
        ([], 0, BatchVerdict.FRESH),
        ([("q", 3)], 4, BatchVerdict.FRESH),
        ([("q", 3)], 3, BatchVerdict.REPLAY),
        ([("q", 3), ("q", 4)], 3, BatchVerdict.REPLAY),
        ([("other", 9), ("q", 3)], 4, BatchVerdict.FRESH),
    ],
)
def test_without_acknowledgments_a_batch_is_judged_by_its_number_within_its_query(
    committed: list[tuple[str, int]], version: int, verdict: BatchVerdict
) -> None:
    assert judge_by_version(application(*committed), batch("q", version), 1, False) is verdict


def test_a_new_query_of_an_old_application_is_refused_unless_reset() -> None:
    """Numbers of another query say nothing about its batches."""
    with pytest.raises(NotJudgeable, match="txnAppReset"):
        judge_by_version(application(("old", 3)), batch("new", 9), 1, False)
    assert judge_by_version(application(("old", 3)), batch("new", 9), 1, True) is BatchVerdict.FRESH


def test_an_empty_batch_of_such_a_query_is_dropped_and_not_committed() -> None:
    """Committed, it would make the query one that is known, and its next batch one that counts."""
    assert judge_by_version(application(("old", 3)), batch("new", 0), 0, False) is BatchVerdict.REPLAY
    assert judge_by_version(application(), batch("new", 0), 0, False) is BatchVerdict.FRESH


@pytest.mark.parametrize(
    ("committed", "version", "last"),
    [([], 0, None), ([3], 4, None), ([3], 3, 3), ([3, 9, 10], 4, 10), ([3, 9], 10, None)],
)
def test_a_job_is_a_replay_up_to_the_last_committed_version(
    committed: list[int], version: int, last: int | None
) -> None:
    """Versions need not follow each other; one that was left out is over."""
    assert judge_job(application(*((JOBS, known) for known in committed)), version) == last


def test_an_application_is_of_streams_or_of_jobs() -> None:
    require_kind(application(), JOBS)
    require_kind(application(("q", 1)), "other")
    require_kind(application((JOBS, 1)), JOBS)
    with pytest.raises(ApplicationMixed, match="use another txnAppId"):
        require_kind(application((JOBS, 1)), "q")
    with pytest.raises(ApplicationMixed, match="use another txnAppId"):
        require_kind(application(("q", 1)), JOBS)


# -- state --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("committed", "query", "version", "whole"),
    [
        ([], "q", 0, True),
        ([("q", 3)], "q", 4, True),
        ([("q", 3)], "q", 3, True),
        ([("q", 3)], "q", 2, False),
        ([("q", 3)], "new", 0, False),
        ([("q", 3)], "new", 4, False),
    ],
)
def test_state_belongs_to_the_batch_committed_last(
    committed: list[tuple[str, int]], query: str, version: int, whole: bool
) -> None:
    """Only that one may come again: it is cut as it was. A new query and an older checkpoint have other state."""
    if whole:
        require_whole_state(application(*committed), batch(query, version))
        return
    with pytest.raises(StateLost, match="txnAppReset"):
        require_whole_state(application(*committed), batch(query, version))
