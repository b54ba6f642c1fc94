"""The checks of stored samples detect every incompatible change of a format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from txnframework.errors import UnknownFormat
from txnframework.testing.stored_samples import StoredSample, check_read, check_refused, check_written, with_json_format

PACKAGE = "txnframework.runtime"
"""A package that refuses no format."""


def read(data: bytes) -> object:
    """Return the value of a document of format 1."""
    document = msgspec.json.decode(data)
    if document["format"] != 1:
        raise UnknownFormat("the document", document["format"])
    return document["value"]


def read_both(data: bytes) -> object:
    """Return the value of a document of format 1 or 2."""
    document = msgspec.json.decode(data)
    if document["format"] not in (1, 2):
        raise UnknownFormat("the document", document["format"])
    return document["value"]


WHOLE = StoredSample("one.json", 1, 7, lambda: b'{"format":1,"value":7}', read, refused_as="the document")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the file of the sample."""
    monkeypatch.setenv("TXN_WRITE_SAMPLES", "1")
    check_written(tmp_path, [WHOLE])
    monkeypatch.delenv("TXN_WRITE_SAMPLES")
    return tmp_path


def check(folder: Path, sample: StoredSample) -> None:
    """Check one sample in every way."""
    check_written(folder, [sample])
    check_read(folder, [sample])
    check_refused([sample], PACKAGE)


def test_whole(folder: Path) -> None:
    """Unchanged formats pass; a file of an earlier version can be read."""
    later = replace(WHOLE, version=2, encode=lambda: b'{"format":2,"value":7}', decode=read_both)
    (folder / later.file).write_bytes(later.encode())
    check(folder, later)
    (folder / later.file).unlink()
    check(folder, WHOLE)


BROKEN: list[tuple[StoredSample, str]] = [
    (replace(WHOLE, encode=lambda: b'{"value":7,"format":1}'), "one.1.json is written differently"),
    (replace(WHOLE, version=2), "no sample one.2.json"),
    (replace(WHOLE, name="other.json"), "no sample other.1.json"),
    (replace(WHOLE, value=8), "one.1.json is read as 7, and not as 8"),
    (replace(WHOLE, decode=lambda _: 7), "version 2 of one.json is read as 7"),
    (replace(WHOLE, refused_as="the record"), "version 2 of one.json: the document has format version 2"),
    (replace(WHOLE, with_version=lambda data, _: data + b" "), "one.json has its version elsewhere"),
    (replace(WHOLE, with_version=lambda _, version: with_json_format(b"{}", version)), "has its version elsewhere"),
]


@pytest.mark.parametrize(("sample", "why"), BROKEN)
def test_broken(folder: Path, sample: StoredSample, why: str) -> None:
    """A release that writes, reads or refuses differently fails."""
    with pytest.raises(AssertionError, match=why):
        check(folder, sample)


def test_a_sample_that_is_gone(folder: Path) -> None:
    """A removed sample is detected, because its format would no longer be read."""
    (folder / "other.1.json").write_bytes(b"{}")
    with pytest.raises(AssertionError, match=r"no sample is named as these files: \['other.1.json'\]"):
        check_written(folder, [WHOLE])


def test_a_format_without_a_sample() -> None:
    """A version check without a sample is named."""
    with pytest.raises(AssertionError, match=r"no sample is refused at .*model/records\.py"):
        check_refused([WHOLE], "txnframework.model")
