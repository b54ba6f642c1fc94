"""The output of the commands: sentences, tables and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from txnframework.cli.output import duration_of, print_facts, print_records
from txnframework_spark.pipeline.analysis import Analysis, guarantee, notes
from txnframework_spark.pipeline.description import Pipeline
from txnframework_spark.pipeline.screen import Screen, format_state
from txnframework_spark.pipeline.status import PipelineStatus, SourceStatus, StateNote

_ROWS_NAME_IT = "(column topic)"
_UNKNOWN = "(result of the function)"


def ending(screen: Screen, stopped: bool, given_up: bool) -> str:
    """Return the closing sentence of a run that did not fail."""
    batches = "1 batch" if screen.batches == 1 else f"{screen.batches:,} batches"
    done = f"{batches}, {screen.rows_in:,} rows in, {screen.rows_out:,} rows out"
    if given_up:
        return f"Stopped after {done}. The current batch was aborted; the next start runs it again."
    if stopped:
        return f"Stopped after {done}. No batch is incomplete; the next start continues after it."
    return f"All available input is processed: {done}."


def analysis_document(pipeline: Pipeline, analysis: Analysis, sources: Sequence[SourceStatus]) -> dict[str, Any]:
    """Return an analysis, for JSON output."""
    stateful = None if analysis.stateful is None else bool(analysis.stateful)
    return {
        "pipeline": pipeline.pipeline.name,
        "trigger": _trigger(pipeline),
        "master": pipeline.spark.master,
        "checkpoint": pipeline.pipeline.checkpoint,
        "stateful": None if analysis.stateful is None else list(analysis.stateful),
        "guarantee": guarantee(pipeline, stateful),
        "notes": list(notes(pipeline, stateful)),
        "sources": [_source_document(source.view, analysis, sources) for source in pipeline.sources],
        "sinks": [{"topic": sink.topic, "where": sink.where} for sink in pipeline.sinks],
        "columns": None if analysis.columns is None else list(analysis.columns),
    }


def print_analysis(pipeline: Pipeline, analysis: Analysis, sources: Sequence[SourceStatus]) -> None:
    """Print an analysis."""
    stateful = None if analysis.stateful is None else bool(analysis.stateful)
    print_facts(
        {
            "pipeline": pipeline.pipeline.name,
            "trigger": _trigger(pipeline),
            "master": pipeline.spark.master,
            "checkpoint": pipeline.pipeline.checkpoint,
            "state": f"kept by {', '.join(analysis.stateful)}" if analysis.stateful else _no_state(stateful),
            "guarantee": guarantee(pipeline, stateful),
        }
    )
    for note in notes(pipeline, stateful):
        click.echo(f"Note: {note}.")
    print_records(
        [
            {
                "view": source.view,
                "reads": ", ".join(one.topic for one in sources if one.view == source.view) or "(chosen by options)",
                "as": source.group_id or "(checkpoint)",
                "columns": ", ".join(analysis.views[source.view]),
            }
            for source in pipeline.sources
        ]
    )
    print_records(
        [
            {
                "writes": sink.topic or _ROWS_NAME_IT,
                "rows": sink.where or "all",
                "columns": _UNKNOWN
                if analysis.columns is None
                else ", ".join(name for name in analysis.columns if name != "topic"),
            }
            for sink in pipeline.sinks
        ]
    )
    click.echo(f"{pipeline.pipeline.name} can be run; nothing was read or written.")


def _no_state(stateful: bool | None) -> str:
    return "not known" if stateful is None else "none"


def status_document(pipeline: Pipeline, status: PipelineStatus) -> dict[str, Any]:
    """Return the progress of a pipeline, for JSON output."""
    application, found = status.application, status.open
    committed = application.committed[-1] if application is not None and application.committed else None
    return {
        "pipeline": pipeline.pipeline.name,
        "run": None if application is None else application.run,
        "query": None if committed is None else committed.query,
        "committed": None if committed is None else committed.version,
        "open": None
        if found is None or application is None
        else {
            "transaction": str(found.txn_id),
            "batch": application.version,
            "age_ms": max(0, status.now_ms - found.created_ms),
            "left_ms": found.deadline_ms - status.now_ms,
        },
        "state": None if status.state is None else _state_document(status.state),
        "sources": [_status_of_source(one) for one in status.sources],
    }


def print_status(pipeline: Pipeline, status: PipelineStatus) -> None:
    """Print the progress of a pipeline."""
    document = status_document(pipeline, status)
    opened = document["open"]
    print_facts(
        {
            "pipeline": document["pipeline"],
            "last committed": "nothing yet" if document["committed"] is None else f"batch {document['committed']}",
            "query": document["query"],
            "open batch": "none" if opened is None else _open_batch(opened),
            **_state_facts(status.state),
        }
    )
    if status.state is not None and status.state.late_rows:
        click.echo(
            "Warning: rows that were later than the watermark allows were dropped; a longer watermark delay keeps such"
            " rows."
        )
    rows = [row for one in document["sources"] for row in _rows(one)]
    if rows:
        print_records(rows)


def _state_document(note: StateNote) -> dict[str, Any]:
    return {
        "batch": note.batch,
        "watermark": note.watermark,
        "rows": note.rows,
        "bytes": note.bytes,
        "late_rows": note.late_rows,
        "late_batch": note.late_batch,
    }


def _state_facts(note: StateNote | None) -> dict[str, str]:
    if note is None:
        return {}
    late = f"{note.late_rows:,}, the last in batch {note.late_batch}" if note.late_rows else "none"
    return {
        "state": f"{format_state(note.rows, note.bytes)} after batch {note.batch}",
        "watermark": note.watermark or "none",
        "dropped as late": late,
    }


def _open_batch(opened: dict[str, Any]) -> str:
    age = f"batch {opened['batch']} for {duration_of(opened['age_ms'])} (transaction {opened['transaction']})"
    left = opened["left_ms"]
    return f"{age}, times out in {duration_of(left)}" if left > 0 else f"{age}, overdue"


def _source_document(view: str, analysis: Analysis, sources: Sequence[SourceStatus]) -> dict[str, Any]:
    mine = [one for one in sources if one.view == view]
    return {
        "view": view,
        "topics": [one.topic for one in mine],
        "group_id": mine[0].group_id if mine else None,
        "columns": list(analysis.views[view]),
    }


def _status_of_source(source: SourceStatus) -> dict[str, Any]:
    lag = source.lag
    return {
        "view": source.view,
        "topic": source.topic,
        "group_id": source.group_id,
        "behind": None if lag is None else sum(one.messages for one in lag),
        "segments": None
        if lag is None
        else [{"segment": one.segment, "behind": one.messages, "exact": one.exact} for one in lag],
    }


def _rows(document: dict[str, Any]) -> list[dict[str, object]]:
    head = {"topic": document["topic"], "as": document["group_id"] or "(checkpoint)"}
    if document["segments"] is None:
        why = "recorded in the checkpoint" if document["group_id"] is None else "not started"
        return [{**head, "segment": "all", "behind": why}]
    return [
        {
            **head,
            "segment": one["segment"].rpartition("/")[2],
            "behind": one["behind"] if one["exact"] else f"at most {one['behind']}",
        }
        for one in document["segments"]
    ]


def _trigger(pipeline: Pipeline) -> str:
    trigger = pipeline.pipeline.trigger
    return f"every {pipeline.pipeline.interval}" if trigger == "processing_time" else trigger.replace("_", " ")
