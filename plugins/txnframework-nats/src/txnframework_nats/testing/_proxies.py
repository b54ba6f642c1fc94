"""Proxies between a client and a server, with which tests lose replies and the connection."""

from __future__ import annotations

from txnframework.testing.servers.proxy import Proxy
from txnframework_nats.testing.servers.frames import Frame, NatsTap

_OWN_SUBJECTS = ("numbers",)
"""Messages that change no record: a client sends them before a write."""


class ClientProxy:
    """
    One client's connection to a server, which tests can cut.

    After a cut, nothing passes until the client makes a call. If that is a write, its requests pass, and everything
    from the reply to the write on is lost. A read finds the connection broken.
    """

    def __init__(self, server: tuple[str, int], prefix: str) -> None:
        self.proxy = Proxy(server, lambda: _ClientTap(self))
        self.is_cut = False
        self.loses_reply = False
        self._root = f"{prefix}.records."
        self._awaited: set[str] = set()

    def cut(self) -> None:
        """Let nothing pass from now on."""
        self.is_cut = True
        self.proxy.stall()

    def restore(self) -> None:
        """Let everything pass, on new connections."""
        self.is_cut = self.loses_reply = False
        self._awaited.clear()
        self.proxy.reset_connections()
        self.proxy.restore()

    def begin_operation(self, writes: bool) -> None:
        """Decide which message the next call of the client loses."""
        if self.is_cut and not self.loses_reply:
            self.loses_reply = writes
            self.proxy.restore()
            if not writes:
                self.proxy.cut()

    def requested(self, frame: Frame) -> None:
        """Handle an operation of the client: remember where the reply to a write goes."""
        is_write = frame.name in ("PUB", "HPUB") and frame.subject.startswith(self._root)
        if is_write and frame.reply_to and not frame.subject.endswith(_OWN_SUBJECTS):
            self._awaited.add(frame.reply_to)

    def delivers(self, frame: Frame) -> bool:
        """Return whether an operation of the server passes; the lost reply ends the connection."""
        if frame.name not in ("MSG", "HMSG"):
            return True
        is_awaited = frame.subject in self._awaited
        self._awaited.discard(frame.subject)
        if self.loses_reply and is_awaited:
            self.proxy.cut()
            return False
        # The consumer's messages would show the client its own write.
        is_reply = frame.subject.count(".") > 1
        return is_reply or not self.is_cut


class _ClientTap(NatsTap):
    """One connection of the client."""

    def __init__(self, owner: ClientProxy) -> None:
        super().__init__()
        self._owner = owner

    def request(self, frame: Frame) -> bool:
        """Report the operation; all of them pass."""
        self._owner.requested(frame)
        return True

    def deliver(self, frame: Frame) -> bool:
        """Let the owner decide."""
        return self._owner.delivers(frame)
