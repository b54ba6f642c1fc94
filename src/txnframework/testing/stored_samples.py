"""
Samples of stored formats: files with the bytes that a release wrote, compared with what this release reads and writes.

A sample's file is named by the sample and its format version. The files of earlier versions stay, and must still be
read. ``TXN_WRITE_SAMPLES=1`` writes the files that are missing, and never replaces one.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from txnframework.errors import TxnFrameworkError, UnknownFormat

FrameAt = tuple[Path, int]
"""A line of a file."""


def with_json_format(data: bytes, version: int) -> bytes:
    """Return a JSON object with another number in its field ``format``."""
    return msgspec.json.encode({**msgspec.json.decode(data), "format": version})


@dataclass(frozen=True)
class StoredSample:
    """
    A value of a stored format.

    ``name``: of the file, with its suffix. ``version``: the format version in which this release writes the value.
    ``encode`` returns the bytes that this release writes, and ``decode`` reads them. ``with_version`` returns these
    bytes with another version. ``unknown``: a version that this release does not know; 0: the next one. ``refused_as``:
    the name of the data in the error that refuses it; empty: the bytes have no version of their own. ``error``: its
    type; one that is not UnknownFormat must have the whole text.
    """

    name: str
    version: int
    value: object
    encode: Callable[[], bytes]
    decode: Callable[[bytes], object]
    refused_as: str = ""
    with_version: Callable[[bytes, int], bytes] = with_json_format
    unknown: int = 0
    error: type[TxnFrameworkError] = UnknownFormat

    @property
    def file(self) -> str:
        """The name of the file for this version."""
        stem, _, suffix = self.name.rpartition(".")
        return f"{stem}.{self.version}.{suffix}"


def check_written(folder: Path, samples: Iterable[StoredSample]) -> None:
    """
    Check that this release writes the bytes in the files of the samples.

    :raises AssertionError: it writes other bytes in the same version, a file is missing, or no sample has this file.
    """
    wanted = {sample.file: sample.encode() for sample in samples}
    folder.mkdir(exist_ok=True)
    for file, data in wanted.items():
        if os.environ.get("TXN_WRITE_SAMPLES") == "1" and not (folder / file).exists():
            (folder / file).write_bytes(data)
        assert (folder / file).exists(), f"no sample {file}: run this test once with TXN_WRITE_SAMPLES=1"
        assert (folder / file).read_bytes() == data, f"{file} is written differently in the same format version"
    known = {file for sample in samples for file in _files(folder, sample)}
    unknown = {path.name for path in folder.iterdir()} - known
    assert not unknown, f"no sample is named as these files: {sorted(unknown)}"


def check_read(folder: Path, samples: Iterable[StoredSample]) -> None:
    """
    Check that this release reads each file, of this and of earlier versions.

    :raises AssertionError: it reads another value.
    """
    for sample in samples:
        for file in _files(folder, sample):
            found = sample.decode((folder / file).read_bytes())
            assert found == sample.value, f"{file} is read as {found}, and not as {sample.value}"


def check_refused(samples: Iterable[StoredSample], package: str) -> None:
    """
    Check that the unknown version of each sample is refused, and that the samples reach each such refusal of a package.

    :raises AssertionError: an unknown version is read or named wrongly, or a format of the package has no sample.
    """
    reached: set[FrameAt] = set()
    for sample in samples:
        if not sample.refused_as:
            continue
        unknown = sample.unknown or sample.version + 1
        error = _refusal(sample, unknown)
        named = (
            f"{sample.refused_as} has format version {unknown}," if sample.error is UnknownFormat else sample.refused_as
        )
        assert named in str(error), f"version {unknown} of {sample.name}: {error}"
        reached.update((Path(one.filename), one.lineno or 0) for one in traceback.extract_tb(error.__traceback__))
    missed = [
        f"{path}:{first}"
        for path, first, last in refusals(package)
        if not any(path == at and first <= line <= last for at, line in reached)
    ]
    assert not missed, f"no sample is refused at {', '.join(missed)}"


def _refusal(sample: StoredSample, unknown: int) -> TxnFrameworkError:
    """Return the error that refuses a version of a sample."""
    data = sample.encode()
    assert sample.with_version(data, sample.version) == data, f"{sample.name} has its version elsewhere"
    try:
        found = sample.decode(sample.with_version(data, unknown))
    except sample.error as error:
        return error
    raise AssertionError(f"version {unknown} of {sample.name} is read as {found}")


def refusals(package: str) -> Iterator[tuple[Path, int, int]]:
    """Yield where the modules of a package raise UnknownFormat: the file, the first and the last line."""
    spec = importlib.util.find_spec(package)
    assert spec is not None, package
    for folder in spec.submodule_search_locations or ():
        for path in sorted(Path(folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "raise UnknownFormat(" not in text:
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                    function = node.exc.func
                    if isinstance(function, ast.Name) and function.id == "UnknownFormat":
                        yield path, node.lineno, node.end_lineno or node.lineno


def _files(folder: Path, sample: StoredSample) -> list[str]:
    """Return the files of a sample, of every version."""
    stem, _, suffix = sample.name.rpartition(".")
    found = (path.name for path in folder.glob(f"{stem}.*.{suffix}"))
    return sorted(name for name in found if name[len(stem) + 1 : -len(suffix) - 1].isdigit())
