"""
What a proxy before a ZooKeeper sees: requests and replies instead of bytes.

    class WithoutReplies(ZooKeeperTap):
        def reply(self, operation: Operation | None) -> bool:
            return operation is not Operation.MULTI

    async with Proxy((host, port), WithoutReplies) as proxy:
        ...
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from txnframework.testing.servers.proxy import Side, Tap

_LENGTH: Final = struct.Struct(">i")
_NUMBER_AND_OPERATION: Final = struct.Struct(">ii")
_SESSION: Final = struct.Struct(">iiqi")
_OF_NO_REQUEST: Final = frozenset({-1, -2, -4})
"""The numbers that belong to what the server tells of itself, to pings and to logging in."""


class Operation(IntEnum):
    """What a request asks for, as far as tests care."""

    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET = 4
    SET = 5
    CHILDREN = 8
    SYNC = 9
    CHILDREN_AND_STAT = 12
    MULTI = 14
    CREATE_AND_STAT = 15
    CREATE_CONTAINER = 19
    CLOSE = -11

    @property
    def writes(self) -> bool:
        """Whether it changes data."""
        return self in _WRITES


_WRITES = frozenset(
    {
        Operation.CREATE, Operation.DELETE, Operation.SET, Operation.MULTI, Operation.CREATE_AND_STAT,
        Operation.CREATE_CONTAINER,
    }
)  # fmt: skip
_BY_CODE = {operation.value: operation for operation in Operation}


@dataclass(frozen=True)
class Session:
    """What a client needs to go on with a session, and whoever knows it to end it."""

    number: int
    password: bytes


class ZooKeeperTap(Tap):
    """
    Splits one connection's bytes.

    What opens a connection, pings, and connections for a four-letter command pass without a question.
    """

    def __init__(self) -> None:
        self.session: Session | None = None
        self._parts = {side: bytearray() for side in Side}
        self._is_open = dict.fromkeys(Side, False)
        self._asked: dict[int, Operation | None] = {}
        self._is_plain: bool | None = None

    def request(self, operation: Operation | None) -> bool:  # noqa: ARG002 - for those who override it
        """Return whether a request goes on; None: one that tests do not care for."""
        return True

    def reply(self, operation: Operation | None) -> bool:  # noqa: ARG002 - for those who override it
        """Return whether the reply to a request goes on; called when the server has done what was asked."""
        return True

    def event(self) -> bool:
        """Return whether the end of a watch is told."""
        return True

    def passes(self, sender: Side, data: bytes) -> bytes:
        """Ask for each whole frame; what has come of the next one waits for its rest."""
        part = self._parts[sender]
        part += data
        if self._is_plain is None and sender is Side.CLIENT:
            # A four-letter command has no length before it; no request is as long as such letters would say.
            self._is_plain = part[: _LENGTH.size].isalpha()
        if self._is_plain:
            passed = bytes(part)
            part.clear()
            return passed
        whole = bytearray()
        while len(part) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(part)[0]
            if len(part) < end:
                break
            if self._goes_on(sender, part[_LENGTH.size : end]):
                whole += part[:end]
            del part[:end]
        return bytes(whole)

    def _goes_on(self, sender: Side, frame: bytearray) -> bool:
        if not self._is_open[sender]:
            self._is_open[sender] = True
            if sender is Side.SERVER:
                _, _, number, length = _SESSION.unpack_from(frame)
                self.session = Session(number, bytes(frame[_SESSION.size : _SESSION.size + length]))
            return True
        if sender is Side.CLIENT:
            number, code = _NUMBER_AND_OPERATION.unpack_from(frame)
            if number in _OF_NO_REQUEST:
                return True
            operation = _BY_CODE.get(code)
            self._asked[number] = operation
            return self.request(operation)
        (number,) = _LENGTH.unpack_from(frame)
        if number in _OF_NO_REQUEST:
            return self.event() if number == -1 else True
        return self.reply(self._asked.pop(number, None))
