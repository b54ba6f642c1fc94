"""Lines of standard input, as soon as they come."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from typing import BinaryIO

from txnframework.errors import InvalidInput

CHUNK_BYTES = 1 << 18
"""How much is read at a time."""


async def lines_of_input() -> AsyncIterator[list[bytes]]:
    """
    Yield what has come, in whole lines without their ends; the last one may lack its end.

    Waiting for more leaves the event loop to the client, whose session goes on, and to Control-C.
    """
    if sys.stdin is None:
        raise InvalidInput("standard input is closed: name the messages, or send lines")
    begun = b""
    while chunk := await _read(sys.stdin.buffer):
        *lines, begun = (begun + chunk).split(b"\n")
        if lines:
            yield [line.rstrip(b"\r") for line in lines]
    if begun:
        yield [begun.rstrip(b"\r")]


async def _read(source: BinaryIO) -> bytes:
    """Return what is there, at least one byte; none at the end."""
    loop = asyncio.get_running_loop()
    come = asyncio.Event()
    try:
        loop.add_reader(source.fileno(), come.set)
    except (OSError, NotImplementedError):
        return source.read(CHUNK_BYTES)  # a file: nobody waits for it, and no selector takes it
    try:
        await come.wait()
    finally:
        loop.remove_reader(source.fileno())
    return os.read(source.fileno(), CHUNK_BYTES)
