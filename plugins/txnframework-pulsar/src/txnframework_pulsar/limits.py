"""What one gateway and one connection may hold."""

from __future__ import annotations

from dataclasses import dataclass

from txnframework_pulsar.wire.frames import OVERHEAD_BYTES_MAX

HANDSHAKE_BYTES_MAX = 64 * 1024
"""The most bytes of a frame before the client has said who it is."""


@dataclass(frozen=True, slots=True)
class Limits:
    """
    * ``connections_max``: connections of the gateway, as far as the process may open files. A further one replaces the
      oldest whose client has not said who it is; if there is none, it is refused.
    * ``message_bytes_max``: the largest message; clients learn it at the start.
    * ``sends_in_flight_max``, ``bytes_in_flight_max``: unconfirmed messages of one connection; then it is not read.
      The bytes are those in memory: a compressed batch counts as it was sent and decompressed.
    * ``acks_in_flight_max``: message ids in the unfinished acknowledgments of one connection; then it is not read.
    * ``requests_max``: unanswered requests of one connection; then it is not read.
    * ``handles_max``: producers and consumers of one connection.
    * ``transactions_max``: open transactions of the gateway.
    * ``handshake_s``: how long a connection may take to say who it is.
    * ``keep_alive_s``: how long a connection may be silent before it is asked for a sign of life; after twice this
      time it is closed.
    * ``leaving_s``: how long a connection that is closed may take to read what was written to it.
    """

    message_bytes_max: int
    connections_max: int = 10_000
    sends_in_flight_max: int = 1_000
    bytes_in_flight_max: int = 64 * 1024 * 1024
    acks_in_flight_max: int = 10_000
    requests_max: int = 1_000
    handles_max: int = 10_000
    transactions_max: int = 100_000
    handshake_s: float = 10
    keep_alive_s: float = 30
    leaving_s: float = 5

    @property
    def frame_bytes_max(self) -> int:
        """The most bytes of a frame of a client that is known."""
        return self.message_bytes_max + OVERHEAD_BYTES_MAX
