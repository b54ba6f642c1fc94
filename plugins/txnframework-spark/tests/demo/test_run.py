"""The demo for real, in small: a kill, a split, a checkpoint lost, on a real Spark."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from txnframework_spark.demo.faults import Fault, Start, Stop
from txnframework_spark.demo.input import Input, InputFormat, InputRow
from txnframework_spark.demo.run import DemoSettings, run_demo
from txnframework_spark.demo.stores import StoreUrls
from txnframework_spark.microbatch.pause import COMMITTED, MID_WRITE

ROWS = tuple(InputRow(line, {"name": f"row {line}"}) for line in range(2, 62))
PLAN = (
    Start((Stop(MID_WRITE, 0, Fault.SPLIT), Stop(COMMITTED, 1)), lose_checkpoint=True),
    Start(),
)


def test_a_killed_pipeline_whose_checkpoint_is_lost_goes_on_exactly_once(tmp_path: Path) -> None:
    """Batch 1 is committed and nobody but the store knows; rows that come after the split are not missed."""
    document = io.StringIO()
    source = Input(Path("rows.csv"), InputFormat.CSV, ROWS)
    settings = DemoSettings(source, tmp_path, StoreUrls.of(None, None, tmp_path), batch=15, plan=PLAN)
    outcome = run_demo(settings, Console(file=document, width=200))
    assert outcome.errors == ()
    assert outcome.verdict.findings == ()
    assert outcome.verdict.rows_out["enriched"] == len(ROWS)
    assert [(kill.point, kill.batch, kill.hit) for kill in outcome.kills] == [(COMMITTED, 1, True)]
    assert [split.written for split in outcome.splits] == [True, False]
    assert outcome.checkpoint_losses == 1
    assert outcome.ok
    assert document.getvalue().count("done:") == 4
