"""Lines of standard input are read as soon as they are complete, without blocking other work."""

from __future__ import annotations

import asyncio
import io
import os
import sys

import pytest

from txnframework.cli._produce import stdin_lines
from txnframework.errors import InvalidInput


def piped(monkeypatch: pytest.MonkeyPatch) -> int:
    """Make standard input a pipe, and return the end that is written to."""
    reading, writing = os.pipe()
    monkeypatch.setattr("sys.stdin", os.fdopen(reading))
    return writing


async def collected() -> list[list[bytes]]:
    return [some async for some in stdin_lines()]


def test_lines_of_a_pipe_come_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line is available before the next one is written; an incomplete line waits for its end."""
    writing = piped(monkeypatch)

    async def read() -> None:
        lines = stdin_lines()
        os.write(writing, b"one\r\ntw")
        assert await anext(lines) == [b"one"]
        os.write(writing, b"o\n\nthree\nfour")
        assert await anext(lines) == [b"two", b"", b"three"]
        os.close(writing)
        assert [some async for some in lines] == [[b"four"]]

    with sys.stdin:
        asyncio.run(read())


def test_lines_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of a file are read unchanged."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    assert asyncio.run(collected()) == [[b"one", b"two"]]


def test_closed_input_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says that standard input is closed."""
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InvalidInput, match="closed"):
        asyncio.run(collected())
