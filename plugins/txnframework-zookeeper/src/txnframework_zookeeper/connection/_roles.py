"""
What a server is among the others, which decides what makes its answers current.

A server by itself has applied what it confirmed. A follower that is asked to ``sync`` first has applied what its leader
had committed by then. The leader itself may confirm a write, through a follower, before it has applied it, and ``sync``
does not wait for that: behind one, in a few reads out of ten thousand, it answers with what was before. Therefore a
client connects to a leader only if it reaches nobody else, and then its reads wait for a write that changes nothing.
"""

from __future__ import annotations

import re
from contextlib import suppress
from enum import Enum

from txnframework_zookeeper.connection._wire import Wire

QUESTION = b"srvr"
"""The four-letter command whose answer says it; servers allow it unless they are told not to."""

_MODE = re.compile(rb"^Mode: (\w+)", re.MULTILINE)
_ANSWER_BYTES_MAX = 65_536


class Role(Enum):
    """What a server is, for as long as a connection to it lasts."""

    ALONE = "standalone"
    FOLLOWER = "follower"
    LEADER = "leader"
    UNKNOWN = ""


_ROLES = {b"standalone": Role.ALONE, b"follower": Role.FOLLOWER, b"observer": Role.FOLLOWER, b"leader": Role.LEADER}


def role_of(wire: Wire) -> Role:
    """Ask a server that was just connected to; UNKNOWN if it does not say."""
    answer = b""
    with suppress(OSError):
        wire.send(QUESTION)
        wire.flush()
        while len(answer) < _ANSWER_BYTES_MAX and (piece := wire.recv(_ANSWER_BYTES_MAX)):
            answer += piece
    found = _MODE.search(answer)
    return _ROLES.get(found[1], Role.UNKNOWN) if found else Role.UNKNOWN
