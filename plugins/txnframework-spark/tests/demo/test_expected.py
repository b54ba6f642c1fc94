"""What the outputs must hold."""

from __future__ import annotations

from txnframework_spark.demo.input import (
    ALERTS,
    ENRICHED,
    InputFormat,
    InputRow,
    expected_outputs,
    movielens_path,
    read_input,
)


def test_ratings_become_numbers_stars_and_a_time() -> None:
    """A digest of the message is part of it."""
    row = InputRow(7, {"user": "0", "movie": "2", "rating": "4", "timestamp": "1424380312"})
    outputs = expected_outputs(InputFormat.MOVIELENS, [row])
    assert outputs[ENRICHED][7] == {
        "line": 7,
        "user": 0,
        "movie": 2,
        "rating": 4.0,
        "stars": "****",
        "rated_at": "2015-02-19T21:11:52Z",
        "digest": outputs[ENRICHED][7]["digest"],
    }
    assert outputs[ALERTS] == {7: {"line": 7, "reason": "user 0 gave movie 2 ****"}}


def test_alerts_are_the_ratings_of_four_stars_and_more() -> None:
    """174 of the shipped ones."""
    outputs = expected_outputs(InputFormat.MOVIELENS, read_input(movielens_path()).rows)
    assert len(outputs[ENRICHED]) == 1501
    assert len(outputs[ALERTS]) == 174


def test_other_files_give_an_alert_for_about_one_row_in_eight() -> None:
    """By the digest, so that it does not matter what the rows mean."""
    outputs = expected_outputs(InputFormat.CSV, [InputRow(line, {"a": str(line)}) for line in range(800)])
    assert len(outputs[ENRICHED]) == 800
    assert 60 < len(outputs[ALERTS]) < 140
    assert all(str(outputs[ENRICHED][line]["digest"])[0] in "01" for line in outputs[ALERTS])
