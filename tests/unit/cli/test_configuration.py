from __future__ import annotations

from pathlib import Path

import pytest

from txnframework.cli._configuration import retention_summary
from txnframework.config import load_config

NOT_ACKNOWLEDGED = "messages that a subscription has not acknowledged expire"


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("", []),
        ("[retention]\nledger_age_ms = 1", []),
        ("[retention]\ntime_ms = 0\nbytes = 5", ["acknowledged messages are deleted at once"]),
        ("[retention]\ntime_ms = 259_200_000", ["acknowledged messages are deleted after 3 d"]),
        (
            "[retention]\ntime_ms = 5\nbytes = 1000\nbacklog_time_ms = 7_200_000",
            [
                "acknowledged messages are deleted after 5 ms or beyond 1000 bytes of a segment;"
                f" {NOT_ACKNOWLEDGED} after 2 h"
            ],
        ),
        (
            "[retention]\nbacklog_time_ms = 0\n[namespaces.'a/b'.retention]\nbacklog_time_ms = -1\n"
            "[namespaces.'a/c'.retention]\nbytes = 9\n[namespaces.'a/d']",
            [
                f"{NOT_ACKNOWLEDGED} at once",
                "in a/b: nothing is deleted",
                f"in a/c: acknowledged messages are deleted beyond 9 bytes of a segment; {NOT_ACKNOWLEDGED} at once",
            ],
        ),
    ],
)
def test_what_is_deleted(tmp_path: Path, written: str, said: list[str]) -> None:
    """There is one line for all topics and one for each namespace with another rule; none if nothing is deleted."""
    path = tmp_path / "txn.toml"
    path.write_text(written)
    assert list(retention_summary(load_config(path))) == said
