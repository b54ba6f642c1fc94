"""Run as a program: what ``transform`` makes of files of rows, as JSON lines, on a Spark apart from other tests'."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from txnframework_spark.demo.input import ALERTS, ENRICHED, read_input
from txnframework_spark.demo.pipeline import DemoJob, open_session, transform
from txnframework_spark.session import require_this_interpreter


def main(scratch: str, *files: str) -> None:
    require_this_interpreter()
    session = open_session(Path(scratch))
    offset = "struct<ledger: bigint, entry: bigint, index: int>"
    schema = f"key binary, value binary, segment bigint, offset {offset}"
    for file in files:
        source = read_input(Path(file))
        job = DemoJob(Path("c"), Path("ck"), source.kind, "in", ENRICHED, ALERTS, "group", "application", 10)
        rows = [(row.key, row.to_message(), 1, (0, row.line, 2)) for row in source.rows]
        for topic, key, value in transform(session.createDataFrame(rows, schema), job).collect():
            made = {"file": file, "topic": topic, "key": bytes(key).decode(), "value": json.loads(bytes(value))}
            sys.stdout.write(json.dumps(made) + "\n")
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
