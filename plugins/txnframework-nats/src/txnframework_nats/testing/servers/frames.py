"""Lets a proxy before a NATS server handle the protocol's operations instead of bytes."""

from __future__ import annotations

from dataclasses import dataclass

from txnframework.testing.servers.proxy import Side, Tap

_END = b"\r\n"
_WITH_PAYLOAD = frozenset({b"PUB", b"HPUB", b"MSG", b"HMSG"})


@dataclass(frozen=True)
class Frame:
    """One operation: its name, its arguments, and all of its bytes."""

    name: str
    arguments: tuple[str, ...]
    raw: bytes

    @property
    def subject(self) -> str:
        """The subject of a message."""
        return self.arguments[0]

    @property
    def reply_to(self) -> str:
        """The subject for the reply to a message that a client publishes; empty without one."""
        sizes = 2 if self.name == "HPUB" else 1
        return self.arguments[1] if len(self.arguments) > 1 + sizes else ""


class NatsTap(Tap):
    """Splits one connection into operations; override ``request`` and ``deliver``."""

    def __init__(self) -> None:
        self._waiting = {Side.CLIENT: b"", Side.SERVER: b""}

    def passes(self, sender: Side, data: bytes) -> bytes:
        """Return the operations that are complete and may pass."""
        self._waiting[sender] += data
        passed = b""
        while (frame := self._next(sender)) is not None:
            decide = self.request if sender is Side.CLIENT else self.deliver
            if decide(frame):
                passed += frame.raw
        return passed

    def request(self, frame: Frame) -> bool:  # noqa: ARG002 - for those who override it
        """Return whether an operation of the client passes."""
        return True

    def deliver(self, frame: Frame) -> bool:  # noqa: ARG002 - for those who override it
        """Return whether an operation of the server passes."""
        return True

    def _next(self, sender: Side) -> Frame | None:
        waiting = self._waiting[sender]
        line, end, _ = waiting.partition(_END)
        if not end:
            return None
        name, *arguments = line.split() or [b""]
        size = len(line) + len(_END)
        if name.upper() in _WITH_PAYLOAD:
            size += int(arguments[-1]) + len(_END)
        if len(waiting) < size:
            return None
        self._waiting[sender] = waiting[size:]
        return Frame(name.upper().decode(), tuple(map(bytes.decode, arguments)), waiting[:size])
