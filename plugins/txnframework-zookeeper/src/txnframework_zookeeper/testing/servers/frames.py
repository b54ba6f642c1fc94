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
"""The numbers of the server's own notifications, of pings and of logins."""


class Operation(IntEnum):
    """The kinds of requests that tests distinguish."""

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
        """Whether the operation changes data."""
        return self in _WRITES


_WRITES = frozenset(
    {
        Operation.CREATE, Operation.DELETE, Operation.SET, Operation.MULTI, Operation.CREATE_AND_STAT,
        Operation.CREATE_CONTAINER,
    }
)  # fmt: skip
_BY_CODE = {operation.value: operation for operation in Operation}


@dataclass(frozen=True)
class SessionCredentials:
    """The number and password of a session, with which a client can resume or end it."""

    number: int
    password: bytes


class ZooKeeperTap(Tap):
    """
    Splits one connection's bytes into frames.

    The start of a connection, pings, and connections for a four-letter command always pass.
    """

    def __init__(self) -> None:
        self.session: SessionCredentials | None = None
        self._parts = {side: bytearray() for side in Side}
        self._is_open = dict.fromkeys(Side, False)
        self._asked: dict[int, Operation | None] = {}
        self._is_plain: bool | None = None

    def request(self, operation: Operation | None) -> bool:  # noqa: ARG002 - for those who override it
        """Return whether a request passes; None: a kind that tests do not distinguish."""
        return True

    def reply(self, operation: Operation | None) -> bool:  # noqa: ARG002 - for those who override it
        """Return whether the reply to a request passes; called when the server has performed the request."""
        return True

    def event(self) -> bool:
        """Return whether a watch event passes."""
        return True

    def passes(self, sender: Side, data: bytes) -> bytes:
        """Decide on each whole frame; an incomplete frame waits for the rest of its bytes."""
        part = self._parts[sender]
        part += data
        if self._is_plain is None and sender is Side.CLIENT:
            # A four-letter command has no length before it; read as a length, its letters exceed any request.
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
                self.session = SessionCredentials(number, bytes(frame[_SESSION.size : _SESSION.size + length]))
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
