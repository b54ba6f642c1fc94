"""
Messages between a test and a client process: pickled frames, each after its length.

Both ends run the same release on one machine, and trust each other.
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
    """What a child opens: by ``open``, or by ``open_as`` with an identity."""

    kind: type[Harness[Any]]
    directory: Path
    seed: int
    now_ms: int
    identity: str | None


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a method of one of the child's objects; the child's clock is first advanced to ``now_ms``."""

    call: int
    number: int
    method: str
    arguments: tuple[Any, ...]
    now_ms: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancels a call."""

    call: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Asks the child to close its client and end."""


@dataclass(frozen=True, slots=True)
class Reply:
    """
    What a call returned or raised, with the called object's attributes and the child's clock at that time.

    ``call`` is None for the opening and, in a child's last frame, for the closing.
    """

    call: int | None
    value: Any
    error: BaseException | None
    now_ms: int
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reference:
    """An object that stays in the child: its class, its interfaces and its attributes."""

    number: int
    kind: type
    interfaces: tuple[Any, ...]
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Known:
    """An argument that is the child's object with this number."""

    number: int


class Frames:
    """One end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, frame: object) -> None:
        """Send a frame; do nothing if the other end is closed."""
        data = _pickled(frame)
        self._writer.write(len(data).to_bytes(_LENGTH_BYTES) + data)

    async def flush(self) -> None:
        """Wait until the other end accepts more data."""
        await self._writer.drain()

    async def receive(self) -> Any:
        """Return the next frame; None when the other end is closed."""
        try:
            length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES))
            return pickle.loads(await self._reader.readexactly(length))  # noqa: S301 - from our own child or parent
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def close(self) -> None:
        """Close the connection."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            return


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Pickle errors by their attributes: the parameters of an error class often differ from its ``args``."""
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
