"""The stored progress: this release reads what earlier ones wrote, and writes other bytes only in a higher version."""

from __future__ import annotations

from pathlib import Path

from txnframework.model import Position
from txnframework.testing.stored_samples import StoredSample, check_read, check_refused, check_written
from txnframework_geo import _progress
from txnframework_geo._progress import Progress, decode, encode

SAMPLES = Path(__file__).parent / "samples"
TOPIC = "topic://public/default/__progress"
SEGMENT = "segment://public/default/orders/0000-7fff-1"
PROGRESS = Progress(
    7,
    "store-a",
    ("topic://public/default/orders", "topic://public/default/returns"),
    {"topic://public/default/orders": 2},
    {SEGMENT: Position(4, 9)},
    {SEGMENT: (Position(4, 2), Position(4, 5))},
)
SAMPLED = [
    StoredSample(
        "progress.json",
        _progress.FORMAT,
        PROGRESS,
        lambda: encode(PROGRESS),
        lambda data: decode(data, TOPIC),
        refused_as=f"the progress in {TOPIC}",
    )
]


def test_written() -> None:
    """This release writes the bytes of the files, or a version that has no file yet."""
    check_written(SAMPLES, SAMPLED)


def test_read() -> None:
    """This release reads the files, and finds what was written."""
    check_read(SAMPLES, SAMPLED)


def test_later_versions() -> None:
    """A version that is not known is refused by its name, and each place that refuses one has a sample."""
    check_refused(SAMPLED, "txnframework_geo")
