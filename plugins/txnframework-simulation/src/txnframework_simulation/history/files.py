"""Histories as files: a first line with the format and the run, then one line of JSON for each event."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from txnframework.errors import Corrupt, UnknownFormat
from txnframework.model.records import UNREADABLE
from txnframework_simulation.history.events import Event, History

FORMAT = "txnframework-history"
VERSION = 1

T = TypeVar("T")


class _Head(msgspec.Struct, frozen=True):
    """The first line."""

    format: str
    version: int
    about: dict[str, str] = {}


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Event).decode
_decode_head = msgspec.json.Decoder(_Head).decode


class HistoryWriter:
    """
    Writes events to a new file as they happen. An event that was written survives a kill of this process.

    ``keep`` is the argument for a ``Recorder``.
    """

    def __init__(self, path: Path, about: dict[str, str] | None = None) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._write(_encode(_Head(FORMAT, VERSION, about or {})))

    def keep(self, event: Event) -> None:
        """Write an event as one complete line."""
        self._write(_encode(event))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _write(self, line: bytes) -> None:
        left = line + b"\n"
        while left:
            left = left[os.write(self._file, left) :]


def write(history: History, path: Path) -> None:
    """Write a history to a file, and replace an existing one."""
    with path.open("wb") as file:
        file.write(_encode(_Head(FORMAT, VERSION, history.about)) + b"\n")
        file.writelines(_encode(event) + b"\n" for event in history.events)


def read(path: Path) -> History:
    """
    Read a history.

    An incomplete last line was being written when its process died. It is ignored, which is correct in both cases. If
    it is an ``invoke``, the call was not carried out. If it is a reply, the outcome of the call is unknown.

    :raises UnknownFormat: another release wrote the file.
    :raises Corrupt: the file is no history, or a line is damaged.
    """
    lines = _lines(path)
    head = _decoded(_decode_head, next(lines, b""), path, 1)
    if head.format != FORMAT:
        raise Corrupt(f"{path} is no history: its first line says {head.format!r}")
    if head.version != VERSION:
        raise UnknownFormat(f"the history {path}", head.version)
    events = [_decoded(_decode, line, path, number) for number, line in enumerate(lines, 2)]
    return History(events, dict(head.about))


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield line


def _decoded(decode: Callable[[bytes], T], line: bytes, path: Path, number: int) -> T:
    try:
        return decode(line)
    except UNREADABLE as error:
        raise Corrupt(f"line {number} of the history {path} cannot be read: {error}") from error
