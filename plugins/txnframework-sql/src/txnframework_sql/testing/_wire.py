"""
The messages between a client and PostgreSQL: counts unanswered requests, and loses a reply on request.

The protocol is PostgreSQL's version 3. After the first messages, each message begins with a letter for its kind and
four bytes for its length. A request ends with Sync (or is a simple Query), and its reply with ReadyForQuery. Before
that, a client may ask for the description of a statement: that request ends with Flush. Its reply ends with the
description of the rows, or the message that there are none.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator

from txnframework.testing.servers.proxy import Side, Tap

_LENGTH_BYTES = 4
_ASKS_FOR_TLS = 80877103
_ASKS_TO_CANCEL = 80877102
_LISTENS = re.compile(rb"\s*LISTEN\s+\"?([^\s\";\0]+)", re.I)
_BEGINS_READ_ONLY = re.compile(rb"\s*(BEGIN|START)\b.*\bREAD ONLY", re.I | re.S)
# The driver's own queries about types that it encounters for the first time.
_LOOKS_UP_TYPES = re.compile(rb"\s*(WITH RECURSIVE typeinfo_tree\b|SELECT\s+(current_setting|set_config)\('jit')")
_IDLE = b"I"


class Wires:
    """The connections of one client; ``tap`` creates the tap of another connection."""

    def __init__(self, cut: Callable[[], None]) -> None:
        self.is_losing_reply = False
        self.asked = 0
        self._cut = cut
        self._wires: set[Wire] = set()
        self._moved = asyncio.Event()

    def tap(self) -> Wire:
        """Return the tap of another connection."""
        wire = Wire(self)
        self._wires.add(wire)
        return wire

    def lose_reply(self) -> None:
        """
        Let the next transaction run; cut the connection before its reply, or before any other message of the server.
        """
        self.is_losing_reply = True

    def cut(self) -> None:
        """Cut, as announced by ``lose_reply``."""
        self.is_losing_reply = False
        self._cut()

    @property
    def listening(self) -> frozenset[Wire]:
        """The connections of this client that listen now."""
        return frozenset(wire for wire in self._wires if wire.channels)

    async def answered(self) -> None:
        """Return when no request is unanswered."""
        await self._until(lambda: all(not wire.unanswered for wire in self._wires))

    async def heard(self, marker: bytes, listening: frozenset[Wire]) -> None:
        """
        Return when these connections have received this marker, and therefore every earlier notification.

        They listened when it was sent: a connection that began to listen later never receives it.
        """
        await self._until(lambda: all(marker in wire.markers for wire in self._wires & listening))

    def moved(self) -> None:
        """Wake the waiting callers to check again."""
        self._moved.set()
        self._moved = asyncio.Event()

    def closed(self, wire: Wire) -> None:
        """Remove a connection."""
        self._wires.discard(wire)
        self.moved()

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await self._moved.wait()


MARKER = b"txnframework-harness-marker:"
"""A notification that harnesses send to know that every earlier one has arrived; clients never receive it."""


class Wire(Tap):
    """One connection."""

    def __init__(self, wires: Wires) -> None:
        # A connecting client waits for the first ReadyForQuery.
        self.unanswered = 1
        self.channels: list[str] = []
        self.markers: set[bytes] = set()
        self._wires = wires
        self._described = 0  # the number of unanswered requests for a description
        self._rests = dict.fromkeys(Side, b"")
        self._is_started = False
        self._is_choosing_tls = False
        self._is_done = False
        self._is_read_only = False
        self._is_drivers_own = False
        self._drivers_statements: set[bytes] = set()
        self._listens_to: list[str] = []

    def passes(self, sender: Side, data: bytes) -> bytes:
        """Pass whole messages as they arrive; drop the markers."""
        data = self._rests[sender] + data
        passed = bytearray()
        taken = 0
        for message in self._messages(sender, data):
            taken += len(message)
            if sender is Side.CLIENT:
                self._count_request(message)
            elif not self._count_reply(message):
                continue
            passed += message
        self._rests[sender] = data[taken:]
        self._wires.moved()
        return bytes(passed)

    def closed(self) -> None:
        """Stop counting."""
        self._wires.closed(self)

    def _messages(self, sender: Side, data: bytes) -> Iterator[bytes]:
        at = 0
        while at < len(data):
            if sender is Side.SERVER and self._is_choosing_tls:
                self._is_choosing_tls = False
                length = 1
            else:
                kind_bytes = 1 if self._is_started or sender is Side.SERVER else 0
                if len(data) < at + kind_bytes + _LENGTH_BYTES:
                    return
                length_at = at + kind_bytes
                length = kind_bytes + int.from_bytes(data[length_at : length_at + _LENGTH_BYTES])
                if len(data) < at + length:
                    return
            yield data[at : at + length]
            at += length

    def _count_request(self, message: bytes) -> None:
        if not self._is_started:
            code = int.from_bytes(message[4:8])
            self._is_choosing_tls = code == _ASKS_FOR_TLS
            self._is_started = not self._is_choosing_tls
            self._wires.asked += 1
            if code == _ASKS_TO_CANCEL:
                self.unanswered = 0
            return
        kind, body = message[:1], message[5:]
        if kind in b"QS":
            self.unanswered += 1
            self._wires.asked += 1
        if kind == b"H":
            self.unanswered += 1
            self._described += 1
            self._wires.asked += 1
        if kind == b"B":
            # Bind names the portal, then the statement named by an earlier Parse.
            self._is_drivers_own |= body.split(b"\0", 2)[1] in self._drivers_statements
        if kind in b"QP":
            # Parse names the statement first.
            name, _, text = (b"", b"", body) if kind == b"Q" else body.partition(b"\0")
            if found := _LISTENS.match(text):
                self._listens_to.append(found[1].decode())
            self._is_read_only |= _BEGINS_READ_ONLY.match(text) is not None
            if _LOOKS_UP_TYPES.match(text) is not None:
                self._is_drivers_own = True
                self._drivers_statements.add(name)
            else:
                self._drivers_statements.discard(name)
        if kind == b"X":
            self.unanswered = 0

    def _count_reply(self, message: bytes) -> bool:
        """Handle a message of the server; return whether it passes to the client."""
        kind, body = message[:1], message[5:]
        if kind == b"A":
            if MARKER in body:
                self.markers.add(body[body.index(MARKER) :].rstrip(b"\0"))
                return False
            if self._wires.is_losing_reply:
                self._wires.cut()
                return False
        if kind in b"TnE" and self._described:
            self.unanswered -= 1
            self._described -= 1
        if kind == b"C":
            self._is_done = True
        if kind == b"Z":
            is_over = (body == _IDLE or self._is_read_only) and not self._is_drivers_own
            if self._is_done and self._wires.is_losing_reply and is_over:
                self._wires.cut()
                return False
            if body == _IDLE:
                self._is_read_only = False
                self.channels += self._listens_to
                self._listens_to.clear()
            self._is_done = self._is_drivers_own = False
            self.unanswered -= 1
        return True
