"""
What goes between a test and the process of a client: pickled frames, each behind its length.

Both ends are one release on one machine, and trust each other.
"""

from __future__ import annotations

import asyncio
import io
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from txnframework.testing.harness import Harness

HARNESS = 0
"""The number of the child's harness among the objects of the child."""

OPENED = 1
"""The number of the opened client among the objects of the child."""

_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class Opening:
    """What a child is to open: by ``open``, or by ``open_as`` with an identity."""

    kind: type[Harness[Any]]
    directory: Path
    seed: int
    now_ms: int
    identity: str | None


@dataclass(frozen=True, slots=True)
class Call:
    """A method of one of the child's objects is to be called, when the child's clock has come to ``now_ms``."""

    call: int
    number: int
    method: str
    arguments: tuple[Any, ...]
    now_ms: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody waits for a call any more."""

    call: int


@dataclass(frozen=True, slots=True)
class Leave:
    """What was opened is to be closed, and the process to end."""


@dataclass(frozen=True, slots=True)
class Reply:
    """
    What a call returned or raised, the attributes of the called object and the time on the child's clock then.

    ``call`` is None for the opening and, as the last frame of a child, for the closing.
    """

    call: int | None
    value: Any
    error: BaseException | None
    now_ms: int
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reference:
    """An object that stays in the child: its class, what it provides, and its attributes."""

    number: int
    kind: type
    interfaces: tuple[Any, ...]
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Known:
    """An argument: the object of the child with this number."""

    number: int


class Frames:
    """One end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, frame: object) -> None:
        """Send a frame; to an end that is gone, nothing happens."""
        data = _pickled(frame)
        self._writer.write(len(data).to_bytes(_LENGTH_BYTES) + data)

    async def flush(self) -> None:
        """Wait until the other end can take more."""
        await self._writer.drain()

    async def receive(self) -> Any:
        """Return the next frame; None when the other end is gone."""
        try:
            length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES))
            return pickle.loads(await self._reader.readexactly(length))  # noqa: S301 - from our own child or parent
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def close(self) -> None:
        """Hang up."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            return


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Send errors by their attributes: what their classes take to make one is not what they keep as ``args``."""
        if isinstance(value, BaseException):
            return _error, (type(value), value.args, vars(value))
        return NotImplemented


def _pickled(frame: object) -> bytes:
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(frame)
    return file.getvalue()


def _error(kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(attributes)
    return error
