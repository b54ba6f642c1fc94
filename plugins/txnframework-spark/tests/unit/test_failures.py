"""A failure is reported with its reason, without the page around it."""

from __future__ import annotations

from txnframework_spark.errors import describe_error, extract_reason


def test_the_reason_of_a_failure_is_the_line_under_the_traceback() -> None:
    """Spark wraps the traceback of a Python process into its own text."""
    text = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Traceback (most recent call last):\n"
        '  File "source.py", line 45, in initialOffset\n    return 1\n           ^\n'
        "txnframework.errors.Fenced: application a was taken over\n SQLSTATE: 38000\n=== Plan ===\n+- ~Project\n"
    )
    assert extract_reason(text) == "txnframework.errors.Fenced: application a was taken over"
    assert extract_reason("[X] no such table\nline 2\n") == "[X] no such table"
    assert extract_reason("") == ""


def test_a_sentence_of_ours_stands_alone() -> None:
    """Its class is for programs; Spark's own condition stays, for people look for it."""
    page = 'Traceback\n  File "x.py", line 1, in f\ntxnframework_spark.errors.DataLost: gone: all\n SQLSTATE: 3\n'
    assert describe_error(Exception(page)) == "gone: all"
    assert describe_error(Exception("[TABLE_OR_VIEW_NOT_FOUND] no orders; line 1 pos 14;\n'Project [*]")) == (
        "[TABLE_OR_VIEW_NOT_FOUND] no orders; line 1 pos 14"
    )
    assert describe_error(KeyError()) == "KeyError"
