"""The client at the other end of a connection, for what writes to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from txnframework_pulsar.wire import messages_pb2 as pb
from txnframework_pulsar.wire.frames import command_frame, message_frame


class Peer:
    """
    Writes to a client. After the connection was lost, everything that is written is dropped.

    What is written in one step of the event loop leaves together, because each call of the system takes long.

    ``leave`` is called when a consumer ends that the client did not close, and ``leave_producer`` when a producer does.
    """

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._frames: list[bytes] = []
        self.leave: Callable[[int], None] | None = None
        self.leave_producer: Callable[[int], None] | None = None

    def write(self, command: pb.Command) -> None:
        """Write a command."""
        if not self._writer.is_closing():
            self._add(command_frame(command))

    def write_message(self, command: pb.Command, metadata: pb.MessageMetadata, payload: bytes) -> int:
        """Write a command with a message; return the number of bytes."""
        if self._writer.is_closing():
            return 0
        frame = message_frame(command, metadata, payload)
        self._add(frame)
        return len(frame)

    def _add(self, frame: bytes) -> None:
        if not self._frames:
            self._loop.call_soon(self.flush)
        self._frames.append(frame)

    def flush(self) -> None:
        """Hand over what was written, before the connection is closed or waited for."""
        frames, self._frames = self._frames, []
        if frames and not self._writer.is_closing():
            self._writer.writelines(frames)

    async def drained(self) -> None:
        """Wait until the client has read most of what was written; also return if the connection was lost."""
        self.flush()
        try:
            await self._writer.drain()
        except ConnectionError:
            # Whatever else waits for the client is stopped by the end of the connection.
            await asyncio.sleep(0)

    def end_consumer(self, consumer_id: int) -> None:
        """Tell the client that a consumer ended, so that it subscribes again, and let it leave."""
        self.write(pb.Command(close_consumer=pb.CloseConsumer(consumer_id=consumer_id, request_id=0)))
        if self.leave is not None:
            self.leave(consumer_id)

    def end_producer(self, producer_id: int) -> None:
        """Tell the client that a producer ended, so that it opens it again, and sends what was not confirmed again."""
        self.write(pb.Command(close_producer=pb.CloseProducer(producer_id=producer_id, request_id=0)))
        if self.leave_producer is not None:
            self.leave_producer(producer_id)
