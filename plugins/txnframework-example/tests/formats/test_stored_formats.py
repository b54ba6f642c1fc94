"""The notebook's file: this release reads what earlier ones wrote, and writes other bytes only in a higher version.

A lease's record needs no format of its own: the file is copied without leases whenever it is opened.
"""

from __future__ import annotations

from pathlib import Path

from txnframework.testing.stored_samples import StoredSample, check_read, check_refused, check_written
from txnframework_example import _format
from txnframework_example._format import Change, Head, decode, encode

SAMPLES = Path(__file__).parent / "samples"
HEAD = Head(identity="n-1", number=9)
CHANGES = [
    Change("/a/b", 7, "p", b"one", (("by-time", b"\x00\xff"),)),
    Change("/a/c", 8, value=b""),
    Change("/a/b", 9, "p"),
]
SAMPLED = [
    StoredSample(
        "notebook.jsonl",
        _format.FORMAT,
        (HEAD, CHANGES),
        lambda: encode(HEAD, CHANGES[:2], CHANGES[2:]),
        lambda data: decode(data, "notes"),
        refused_as="notes",
        with_version=lambda data, version: data.replace(b'{"format":2,', b'{"format":%d,' % version, 1),
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
    check_refused(SAMPLED, "txnframework_example")
