"""What the plugin stores: this release reads what earlier ones wrote, and writes other bytes only in a higher version.

A sink's commit messages have no sample: Spark passes them from the tasks of a batch to its commit, and stores none.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from txnframework.model.positions import Position
from txnframework.testing.stored_samples import StoredSample, check_read, check_refused, check_written
from txnframework_spark.jobs import export_folder
from txnframework_spark.jobs.export_folder import Exported, ExportFolder
from txnframework_spark.pipeline import status
from txnframework_spark.pipeline.loader import load_pipeline
from txnframework_spark.pipeline.status import StateNote, decode_note, encode_note
from txnframework_spark.source import offsets
from txnframework_spark.source.offsets import Offset, SegmentOffset, from_json

SAMPLES = Path(__file__).parent / "samples"
TOPIC = "topic://public/default/orders"
LOW, HIGH = (f"segment://public/default/orders/{part}" for part in ("0000-7fff-0", "8000-ffff-1"))
FRONTIER = {TOPIC: {LOW: SegmentOffset(Position(0, 41), 7), HIGH: SegmentOffset(Position(1, -1))}}

PIPELINE = """\
[pipeline]
name = "pricing"
checkpoint = "checkpoint"
trigger = "available_now"
stop_timeout_ms = 5_000

[spark]
master = "local[2]"
conf = { "spark.sql.shuffle.partitions" = 2, "spark.ui.enabled" = false }

[stores]
metadata = "postgresql://user@host/db"

[[sources]]
view = "orders"
subscribe = ["orders", "returns"]
group_id = "pricing"
watermark = { column = "timestamp", delay = "10 minutes" }
options = { maxOffsetsPerTrigger = 100 }

[transform]
sql = "SELECT key, value FROM orders"

[[sinks]]
topic = "priced"
options = { transactionTimeoutMs = 1000 }

[[sinks]]
topic = "alerts"
where = "key IS NULL"
"""


def offset(name: str, value: Offset) -> StoredSample:
    """Return the sample of an offset in Spark's checkpoint."""
    return StoredSample(
        f"{name}.json",
        offsets.FORMAT,
        value,
        lambda: msgspec.json.encode(value.to_json()),
        lambda data: from_json(msgspec.json.decode(data)),
        refused_as="the offset in the checkpoint",
    )


EXPORTED = Exported(
    store="s-1",
    topic=TOPIC,
    life=1,
    number=3,
    upto={LOW: "0:41", HIGH: "1:-1"},
    messages=1_000,
    created_ms=1_700_000_000_000,
)
NOTE = StateNote(batch=8, watermark="2026-01-01T00:00:00.000Z", rows=20, bytes=200, late_rows=4, late_batch=7)


def written_export() -> bytes:
    """Return the bytes of the record that a finished export contains."""
    with tempfile.TemporaryDirectory() as directory:
        folder = ExportFolder(Path(directory))
        staged = folder.staged(EXPORTED.number, "t")
        staged.mkdir(parents=True)
        return (folder.finish(staged, EXPORTED) / "_exported.json").read_bytes()


def read_export(data: bytes) -> Exported | None:
    """Return the record of a folder whose last export contains these bytes."""
    with tempfile.TemporaryDirectory() as directory:
        finished = Path(directory) / "export=3"
        finished.mkdir()
        (finished / "_exported.json").write_bytes(data)
        return ExportFolder(Path(directory)).last()


def read_pipeline(data: bytes) -> object:
    """Return the pipeline in a file of these bytes."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "pipeline.toml"
        file.write_bytes(data)
        return load_pipeline(file)


def all_samples() -> list[StoredSample]:
    """Return every sample of this distribution."""
    return [
        offset("offset", Offset(FRONTIER)),
        offset("offset_initial", Offset(FRONTIER, initial=True)),
        offset("offset_with_its_start", Offset(FRONTIER, began={TOPIC: {LOW: SegmentOffset(Position(0, 12), 7)}})),
        StoredSample(
            "exported.json",
            export_folder.FORMAT,
            EXPORTED,
            written_export,
            read_export,
            refused_as="export=3/_exported.json",
        ),
        StoredSample(
            "state_note.json",
            status.FORMAT,
            NOTE,
            lambda: encode_note(NOTE),
            lambda data: decode_note(data, "pricing"),
            refused_as="the state note of pipeline 'pricing'",
        ),
        StoredSample("pipeline.toml", 1, read_pipeline(PIPELINE.encode()), PIPELINE.encode, read_pipeline),
    ]


def test_written() -> None:
    """This release writes the bytes of the files, or a version that has no file yet."""
    check_written(SAMPLES, all_samples())


def test_read() -> None:
    """This release reads the files, and finds what was written."""
    check_read(SAMPLES, all_samples())


def test_later_versions() -> None:
    """A version that is not known is refused by its name, and each place that refuses one has a sample."""
    check_refused(all_samples(), "txnframework_spark")


def test_a_damaged_note_is_none() -> None:
    """A damaged note is dropped, because the next batch writes another; only a later format is refused."""
    damaged = (b"", b"{", b"\xff", b"[]", b"{}", b'{"format":"x"}', b'{"format":1}')
    assert [decode_note(data, "pricing") for data in damaged] == [None] * len(damaged)
